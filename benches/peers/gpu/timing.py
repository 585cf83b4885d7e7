"""Shared by the GPU peers: the CPU peers' data and command line (../common.py), and timing with a device.

A step is timed as gpu_check times stepgraph's: until the call returns (host_us), until its result is there
(median_us; a training step's loss is read), and several in a row without waiting, per step (device_us).
"""
import json, os, statistics, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import common as C  # noqa: E402


def measure(a, workload, mode, call, read, wait, span, notes="", train=False, bytes_=0, flops=0, device=""):
    """Prints one JSON line.

    call() starts a step and gives its result, read(result) its loss as a float, wait(result) waits for it;
    span(f) gives the seconds that what f() starts takes on the device.
    """
    t = time.perf_counter
    begin = t()
    r = call()
    wait(r)
    first = t() - begin
    losses = []
    if train:
        losses.append(read(r))
        for _ in range(19):
            losses.append(read(call()))
    else:
        begin, n = t(), 0
        while n < 3 or (t() - begin < 0.4 * a.min_time and n < 5000):
            wait(call())
            n += 1
    host, whole, devices = [], [], []
    begin = t()
    while True:
        t0 = t(); r = call(); t1 = t()
        if train:
            read(r)
        else:
            wait(r)
        t2 = t()
        host.append(t1 - t0); whole.append(t2 - t0)
        if (t2 - begin > a.min_time and len(whole) >= 5) or len(whole) >= 50000 or t2 - begin > 12 * a.min_time:
            break
    several = max(2, min(500, int(0.05 / statistics.median(whole))))

    def row():
        last = None
        for _ in range(several):
            last = call()
        return last
    for _ in range(9):
        devices.append(span(row) / several)
    dev = statistics.median(devices)
    o = dict(peer=a.peer, mode=mode + a.tag, workload=workload, threads=1,
             median_us=round(statistics.median(whole) * 1e6, 2), min_us=round(min(whole) * 1e6, 2),
             host_us=round(statistics.median(host) * 1e6, 2), device_us=round(dev * 1e6, 2),
             first_call_ms=round(first * 1e3, 1), iters=len(whole), notes=notes, device=device)
    if losses:
        o.update(loss1=round(losses[0], 5), loss20=round(losses[19], 5))
    if bytes_:
        o["gb_s"] = round(bytes_ / dev / 1e9, 2)
    if flops:
        o["gflop_s"] = round(flops / dev / 1e9, 2)
    print(json.dumps(o), flush=True)


def guard(a, workload, mode, f):
    """Runs f() if it is wanted; a failure becomes a JSON line, not a crash."""
    if not C.wanted(a, workload, mode):
        return
    try:
        f()
    except Exception as e:  # noqa: BLE001 - a peer that can't run an item is a result too
        print(json.dumps(dict(peer=a.peer, mode=mode + a.tag, workload=workload, threads=1,
                              error=f"{type(e).__name__}: {str(e)[:300]}")), flush=True)
