"""PyTorch on a CUDA device, W1 to W7 of ../README.md; JSON lines.

Modes
  eager            plain eager; Adam/AdamW as constructed by default
  eager_fused      W4, W5: with the fused Adam/AdamW
  compile          torch.compile; W4, W5: compiled loss (forward, backward) and compiled optimizer.step
  reduce_overhead  the same with mode="reduce-overhead" (CUDA graphs)
  max_autotune     the same with mode="max-autotune" (CUDA graphs, Triton products)
  cuda_graph       the whole eager step, captured by hand into one torch.cuda.CUDAGraph (W4, W5: fused, capturable Adam)

f32 throughout, without TF32, as stepgraph by default (--tf32 allows it).
"""
import os, sys

TF32 = "--tf32" in sys.argv
if TF32:
    sys.argv.remove("--tf32")
from timing import C, guard, measure  # noqa: E402

MODES = ["eager", "eager_fused", "compile", "reduce_overhead", "max_autotune", "cuda_graph"]
COMPILED = {"compile": None, "reduce_overhead": "reduce-overhead", "max_autotune": "max-autotune"}
a = C.parse("torch", MODES)
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # so that first_call_ms is a cold compile

import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    sys.exit("torch_peer: no CUDA device")
torch.backends.cuda.matmul.allow_tf32 = TF32
torch.backends.cudnn.allow_tf32 = TF32
torch.set_float32_matmul_precision("high" if TF32 else "highest")
torch._dynamo.config.recompile_limit = 64
VER = f"torch {torch.__version__}" + (", tf32" if TF32 else "")
NAME = torch.cuda.get_device_name()


def T(array):
    return torch.from_numpy(array).cuda()


def wait(_):
    torch.cuda.synchronize()


def span(f):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    f()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def bench(w, mode, call, **kw):
    measure(a, w, mode, call, lambda r: r.item(), wait, span, notes=VER, device=NAME, **kw)


def compiled(f, mode):
    torch._dynamo.reset()
    return torch.compile(f, dynamic=False, mode=COMPILED[mode])


def captured(step):
    """step() as one graph; its result is the same tensor at each replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def call():
        graph.replay()
        return result
    return call


def run(w, f, args, **kw):
    for m in ("eager", "compile", "reduce_overhead", "max_autotune", "cuda_graph"):
        def go(m=m):
            with torch.no_grad():
                if m == "eager":
                    bench(w, m, lambda: f(*args), **kw)
                elif m == "cuda_graph":
                    bench(w, m, captured(lambda: f(*args)), **kw)
                else:
                    g = compiled(f, m)

                    def call():
                        if m != "compile":
                            torch.compiler.cudagraph_mark_step_begin()
                        return g(*args)
                    bench(w, m, call, **kw)
        guard(a, w, m, go)


# W1, W2, W3 ---------------------------------------------------------------
if "W1" in a.workloads:
    for n in C.W1_SIZES:
        run(f"W1_coscos_{n}", lambda x: torch.cos(torch.cos(x)), (T(C.uniform(1, (n,))),), bytes_=8 * n)
if "W2" in a.workloads:
    for n in C.W2_SIZES:
        for r in C.W2_REPEATS:
            def rep(x, r=r):
                for _ in range(r):
                    x = x * 2
                return x
            run(f"W2_mul2_{n}_r{r}", rep, (T(C.uniform(1, (n,))),), bytes_=8 * n, flops=r * n)


def chain(x, y):
    for i in range(C.W3_OPS):
        x = x + y if i % 4 == 0 else x * y if i % 4 == 1 else torch.tanh(x) if i % 4 == 2 else torch.relu(x)
    return x


def add50(x, y):
    for _ in range(C.W3_OPS):
        x = x + y
    return x


if "W3" in a.workloads:
    run("W3_chain50", chain, (T(C.uniform(1, (C.W3_N,))), T(C.uniform(2, (C.W3_N,), 0.5, 1.0))))
    run("W3_add50", add50, (T(C.uniform(1, (C.W3_TINY,))), T(C.uniform(2, (C.W3_TINY,)))))


# W4, W5: training steps -----------------------------------------------------
def mlp_loss(p, x, y):
    h = torch.relu(torch.addmm(p["b1"], x, p["w1"]))
    return F.cross_entropy(torch.addmm(p["b2"], h, p["w2"]), y)


def gpt_loss(p, x, y):
    B, S, d, H = C.GPT["B"], C.GPT["T"], C.GPT["d"], C.GPT["heads"]
    h = F.embedding(x, p["wte"]) + p["wpe"]
    for l in range(C.GPT["layers"]):
        u = F.layer_norm(h, (d,), p[f"{l}.ln1.g"], p[f"{l}.ln1.b"])
        q, k, v = (u @ p[f"{l}.qkv"]).view(B, S, 3, H, d // H).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + o.transpose(1, 2).reshape(B, S, d) @ p[f"{l}.proj"]
        u = F.layer_norm(h, (d,), p[f"{l}.ln2.g"], p[f"{l}.ln2.b"])
        h = h + F.gelu(u @ p[f"{l}.fc"], approximate="tanh") @ p[f"{l}.out"]
    logits = F.layer_norm(h, (d,), p["lnf.g"], p["lnf.b"]) @ p["head"]
    return F.cross_entropy(logits.view(-1, C.GPT["vocab"]), y.reshape(-1))


def train(w, loss_fn, params, batch, hp, wd):
    x, y = (T(b) for b in batch)

    def go(mode):
        p = {k: T(v.copy()).requires_grad_() for k, v in params.items()}
        cls = torch.optim.AdamW if wd else torch.optim.Adam
        kw = dict(weight_decay=wd) if wd else {}
        graph = mode == "cuda_graph"
        # A tensor lr keeps the compiled optimizer from recompiling, and capturable ones from reading it on the host.
        lr = torch.tensor(hp["lr"], device="cuda") if mode in COMPILED else hp["lr"]
        opt = cls(p.values(), lr=lr, betas=(hp["b1"], hp["b2"]), eps=hp["eps"],
                  fused=True if mode in ("eager_fused", "cuda_graph") else None,
                  capturable=graph or mode in COMPILED, **kw)
        lf, ostep = loss_fn, opt.step
        if mode in COMPILED:
            lf = compiled(loss_fn, mode)
            ostep = torch.compile(opt.step, dynamic=False, mode=COMPILED[mode])

        def step():
            if mode in COMPILED and mode != "compile":
                torch.compiler.cudagraph_mark_step_begin()
            opt.zero_grad(set_to_none=True)
            loss = lf(p, x, y)
            loss.backward()
            ostep()
            return loss.detach()
        call = step
        if graph:
            call = captured(step)
            with torch.no_grad():  # the warm-up and the capture were steps, too: back to the start
                for k, v in params.items():
                    p[k].copy_(T(v))
                for state in opt.state.values():
                    for v in state.values():
                        v.zero_()
        bench(w, mode, call, train=True)

    for m in MODES:
        guard(a, w, m, lambda m=m: go(m))


if "W4" in a.workloads:
    for b in C.W4_BATCHES:
        train(f"W4_mlp_b{b}", mlp_loss, C.mlp_params(), C.mlp_batch(b), C.ADAM, 0.0)
if "W5" in a.workloads:
    train("W5_gpt", gpt_loss, C.gpt_params(), C.gpt_batch(), C.ADAMW, C.ADAMW["wd"])

# W6, W7 -----------------------------------------------------------------------
if "W6" in a.workloads:
    M, N = C.W6_SHAPE
    x, g, b = T(C.uniform(1, (M, N))), T(C.uniform(2, (N,), 0.1, 1.0)), T(C.uniform(3, (N,), 0.1))
    run("W6_lngelures", lambda x, g, b: x + F.gelu(F.layer_norm(x, (N,), g, b), approximate="tanh"), (x, g, b),
        bytes_=8 * M * N)
    run("W6_softmax", lambda x: torch.softmax(x, -1), (x,), bytes_=8 * M * N)
if "W7" in a.workloads:
    for m, k, n in C.W7_SHAPES:
        run(f"W7_gemm_{m}x{k}x{n}", lambda x, y: x @ y, (T(C.uniform(1, (m, k))), T(C.uniform(2, (k, n)))),
            flops=2 * m * k * n)
