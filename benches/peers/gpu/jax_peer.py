"""JAX on a CUDA device, W1 to W7 of ../README.md; JSON lines.

Modes
  eager         op-by-op dispatch (each jnp primitive is its own cached executable)
  compiled      jax.jit; W4, W5: the whole step as one jit with parameters and optimizer state donated
  compiled_aot  the same executable called through .lower().compile() (skips jit's argument handling)
  compiled_rt   W2 only: the factor 2 is a run-time scalar, so XLA can't fold x*2*2... into one multiply

f32 throughout, products at the highest precision, as stepgraph by default (--tf32 leaves XLA its own choice). JAX has
no events to time with: device_us is the host's time of calls in a row, waited for at the end, per call.
"""
import os, sys, time

TF32 = "--tf32" in sys.argv
if TF32:
    sys.argv.remove("--tf32")
from timing import C, guard, measure  # noqa: E402

MODES = ["eager", "compiled", "compiled_aot", "compiled_rt"]
a = C.parse("jax", MODES)
os.environ.setdefault("JAX_PLATFORMS", "cuda")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

try:
    NAME = jax.devices()[0].device_kind
except RuntimeError as e:
    sys.exit(f"jax_peer: no CUDA device: {e}")
if not TF32:
    jax.config.update("jax_default_matmul_precision", "highest")
VER = f"jax {jax.__version__}" + (", tf32" if TF32 else "")
J = jnp.asarray


def wait(r):
    jax.block_until_ready(r)


def span(f):
    start = time.perf_counter()
    jax.block_until_ready(f())
    return time.perf_counter() - start


def bench(w, mode, call, **kw):
    measure(a, w, mode, call, float, wait, span, notes=VER, device=NAME, **kw)


def run(w, f, args, modes=("eager", "compiled", "compiled_aot"), **kw):
    for m in modes:
        def go(m=m):
            if m == "eager":
                bench(w, m, lambda: f(*args), **kw)
                return
            jax.clear_caches()
            g = jax.jit(f)
            if m == "compiled_aot":
                box = {}

                def call():  # the first call compiles, so that first_call_ms means the same everywhere
                    if "g" not in box:
                        box["g"] = g.lower(*args).compile()
                    return box["g"](*args)
            else:
                def call():
                    return g(*args)
            bench(w, m, call, **kw)
        guard(a, w, m, go)


# W1, W2, W3 ---------------------------------------------------------------
for n in C.W1_SIZES if "W1" in a.workloads else []:
    run(f"W1_coscos_{n}", lambda x: jnp.cos(jnp.cos(x)), (J(C.uniform(1, (n,))),), bytes_=8 * n)

for n in C.W2_SIZES if "W2" in a.workloads else []:
    for r in C.W2_REPEATS:
        def rep(x, r=r):
            for _ in range(r):
                x = x * 2
            return x

        def rep_rt(x, s, r=r):
            for _ in range(r):
                x = x * s
            return x
        x = J(C.uniform(1, (n,)))
        run(f"W2_mul2_{n}_r{r}", rep, (x,), ("eager", "compiled"), bytes_=8 * n, flops=r * n)
        run(f"W2_mul2_{n}_r{r}", rep_rt, (x, jnp.float32(2)), ("compiled_rt",), bytes_=8 * n, flops=r * n)


def chain(x, y):
    for i in range(C.W3_OPS):
        x = x + y if i % 4 == 0 else x * y if i % 4 == 1 else jnp.tanh(x) if i % 4 == 2 else jnp.maximum(x, 0)
    return x


if "W3" in a.workloads:
    run("W3_chain50", chain, (J(C.uniform(1, (C.W3_N,))), J(C.uniform(2, (C.W3_N,), 0.5, 1.0))))


def add50(x, y):
    for _ in range(C.W3_OPS):
        x = x + y
    return x


if "W3" in a.workloads:
    run("W3_add50", add50, (J(C.uniform(1, (C.W3_TINY,))), J(C.uniform(2, (C.W3_TINY,)))))


# W4, W5: training steps -----------------------------------------------------
def xent(logits, y):
    lp = logits - jax.nn.logsumexp(logits, -1, keepdims=True)
    return -jnp.take_along_axis(lp, y[:, None], 1).mean()


def mlp_loss(p, x, y):
    h = jnp.maximum(x @ p["w1"] + p["b1"], 0)
    return xent(h @ p["w2"] + p["b2"], y)


def layer_norm(x, g, b):
    mu = x.mean(-1, keepdims=True)
    c = x - mu
    return c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g + b


def gpt_loss(p, x, y):
    B, S, d, H = C.GPT["B"], C.GPT["T"], C.GPT["d"], C.GPT["heads"]
    mask = jnp.tril(jnp.ones((S, S), bool))
    h = p["wte"][x] + p["wpe"]
    for l in range(C.GPT["layers"]):
        u = layer_norm(h, p[f"{l}.ln1.g"], p[f"{l}.ln1.b"])
        qkv = (u @ p[f"{l}.qkv"]).reshape(B, S, 3, H, d // H).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        s = jnp.where(mask, q @ k.swapaxes(-1, -2) * (d // H) ** -0.5, -jnp.inf)
        o = jax.nn.softmax(s, -1) @ v
        h = h + o.transpose(0, 2, 1, 3).reshape(B, S, d) @ p[f"{l}.proj"]
        u = layer_norm(h, p[f"{l}.ln2.g"], p[f"{l}.ln2.b"])
        h = h + jax.nn.gelu(u @ p[f"{l}.fc"], approximate=True) @ p[f"{l}.out"]
    logits = layer_norm(h, p["lnf.g"], p["lnf.b"]) @ p["head"]
    return xent(logits.reshape(-1, C.GPT["vocab"]), y.reshape(-1))


def train(w, loss_fn, params, batch, hp, wd):
    x, y = (J(b) for b in batch)

    def step(p, m, s, t, x, y):
        loss, g = jax.value_and_grad(loss_fn)(p, x, y)
        t = t + 1
        c1, c2 = 1 - hp["b1"] ** t, 1 - hp["b2"] ** t
        m = jax.tree.map(lambda m, g: hp["b1"] * m + (1 - hp["b1"]) * g, m, g)
        s = jax.tree.map(lambda s, g: hp["b2"] * s + (1 - hp["b2"]) * g * g, s, g)
        p = jax.tree.map(lambda p, m, s: p * (1 - hp["lr"] * wd) - hp["lr"] * (m / c1) / (jnp.sqrt(s / c2) + hp["eps"])
                         if wd else p - hp["lr"] * (m / c1) / (jnp.sqrt(s / c2) + hp["eps"]), p, m, s)
        return loss, p, m, s, t

    def go(mode):
        p = {k: J(v) for k, v in params.items()}
        st = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.float32(0)]
        jax.clear_caches()
        f = step if mode == "eager" else jax.jit(step, donate_argnums=(0, 1, 2, 3))
        box = {}

        def call():
            g = f
            if mode == "compiled_aot":
                if "g" not in box:
                    box["g"] = f.lower(*st, x, y).compile()
                g = box["g"]
            loss, *st[:] = g(*st, x, y)
            return loss
        bench(w, mode, call, train=True)
    for m in ("eager", "compiled", "compiled_aot"):
        guard(a, w, m, lambda m=m: go(m))


for b in C.W4_BATCHES if "W4" in a.workloads else []:
    train(f"W4_mlp_b{b}", mlp_loss, C.mlp_params(), C.mlp_batch(b), C.ADAM, 0.0)
if "W5" in a.workloads:
    train("W5_gpt", gpt_loss, C.gpt_params(), C.gpt_batch(), C.ADAMW, C.ADAMW["wd"])

# W6, W7 -----------------------------------------------------------------------
if "W6" in a.workloads:
    M, N = C.W6_SHAPE
    x, g, b = J(C.uniform(1, (M, N))), J(C.uniform(2, (N,), 0.1, 1.0)), J(C.uniform(3, (N,), 0.1))
    run("W6_lngelures", lambda x, g, b: x + jax.nn.gelu(layer_norm(x, g, b), approximate=True), (x, g, b),
        ("eager", "compiled"), bytes_=8 * M * N)
    run("W6_softmax", lambda x: jax.nn.softmax(x, -1), (x,), ("eager", "compiled"), bytes_=8 * M * N)
if "W7" in a.workloads:
    for m, k, n in C.W7_SHAPES:
        run(f"W7_gemm_{m}x{k}x{n}", lambda x, y: x @ y, (J(C.uniform(1, (m, k))), J(C.uniform(2, (k, n)))),
            ("eager", "compiled"), flops=2 * m * k * n)
