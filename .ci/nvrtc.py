"""Compiles kernels that a run left in a folder (files of the kernel cache: sources beside images) with a real NVRTC, for
several architectures, without a GPU.

usage: nvrtc.py FOLDER... --wheels FOLDER,... [--arch sm_80,sm_90,sm_100]

Every source must compile without errors and warnings by every NVRTC for every architecture. Kernels that pack elements
must show vector loads or stores in the PTX. Kernels in folders with `workloads` in their name must not spill.
"""
import argparse, collections, concurrent.futures, ctypes, glob, os, re, sys

MAGIC = b"sgcubin1"


def sources(folder):
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.cubin"))):
        data = open(path, "rb").read()
        assert data[:8] == MAGIC, f"{path} is no file of the kernel cache"
        at, parts = 8, []
        for _ in range(2):
            length = int.from_bytes(data[at : at + 8], "little")
            parts.append(data[at + 8 : at + 8 + length])
            at += 8 + length
        found[parts[1]] = path
    return list(found)


class Nvrtc:
    def __init__(self, wheel):
        pattern = os.path.join(wheel, "nvidia", "*", "lib", "")
        one = lambda name: sorted(glob.glob(pattern + name))[0]
        self.builtins = ctypes.CDLL(one("libnvrtc-builtins.so.*"), ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(one("libnvrtc.so.*"))
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        self.version = f"{major.value}.{minor.value}"

    def text(self, program, what):
        size = ctypes.c_size_t()
        assert getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert getattr(self.lib, f"nvrtcGet{what}")(program, buffer) == 0
        return buffer.raw[: size.value].rstrip(b"\0").decode(errors="replace")

    def compile(self, source, arch):
        program = ctypes.c_void_p()
        assert self.lib.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None) == 0
        options = [f"--gpu-architecture={arch}", "--fmad=false", "--std=c++17", "--ptxas-options=-v"]
        array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        status = self.lib.nvrtcCompileProgram(program, len(options), array)
        log = self.text(program, "ProgramLog")
        ptx = self.text(program, "PTX") if status == 0 else ""
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return status, log, ptx


def check(job):
    wheel, folder, batch, arch = job
    nvrtc = Nvrtc(wheel)
    failures, vectors, spilled = [], 0, 0
    for source in batch:
        status, log, ptx = nvrtc.compile(source, arch)
        name = re.search(rb"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source)
        name = name.group(1).decode() if name else "?"
        lines = [l for l in log.splitlines() if "error" in l or "warning" in l]
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
        spilled += any(spills)
        if status != 0 or lines:
            failures.append(f"NVRTC {nvrtc.version}, {arch}: {name}: {log[:600]}")
        elif any(spills) and "workloads" in folder:
            failures.append(f"NVRTC {nvrtc.version}, {arch}: {name} spills {max(spills)} bytes")
        # Four bytes are one 32-bit access.
        if re.search(rb"(load|store)_pack<(?!u8|i8)\w+, \d+>\(", source):
            if re.search(r"(ld|st)\.global(\.nc)?\.v[24]\.", ptx) is None and status == 0:
                failures.append(f"NVRTC {nvrtc.version}, {arch}: {name} claims vector accesses and has none")
            vectors += 1
    return nvrtc.version, arch, len(batch), vectors, spilled, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--wheels", required=True)
    parser.add_argument("--arch", default="sm_80,sm_90,sm_100")
    args = parser.parse_args()
    jobs = []
    for folder in args.folders:
        found = sources(folder)
        assert found, f"no kernels in {folder}"
        print(f"{folder}: {len(found)} kernels", flush=True)
        for wheel in args.wheels.split(","):
            for arch in args.arch.split(","):
                jobs += [(wheel, folder, found[i : i + 100], arch) for i in range(0, len(found), 100)]
    # One process a job: two versions of the library do not live in one.
    totals, failures = collections.Counter(), []
    with concurrent.futures.ProcessPoolExecutor(max_tasks_per_child=1, max_workers=os.cpu_count()) as pool:
        for version, arch, count, vectors, spilled, failed in pool.map(check, jobs):
            totals[version, arch, "compiled"] += count
            totals[version, arch, "with vector accesses"] += vectors
            totals[version, arch, "spilling"] += spilled
            failures += failed
    for (version, arch, what), count in sorted(totals.items()):
        print(f"NVRTC {version}, {arch}: {count} {what}")
    for failure in failures[:20]:
        print(failure)
    if failures:
        sys.exit(f"{len(failures)} kernels do not pass")


if __name__ == "__main__":
    main()
