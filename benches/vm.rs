//! Micro benchmark of the vector machine: medians of one thread, by instruction set.
//!
//! `cargo bench --bench vm [-- FILTER]`; `STEPGRAPH_ISA` as usual.

use std::hint::black_box;
use std::time::Instant;

use stepgraph::backend::cpu::vm::{Isa, Program};
use stepgraph::base::DType;
use stepgraph::kernel::build::Builder;
use stepgraph::kernel::{Access, Combine, Kernel, Ty, Val, math};

/// Median nanoseconds of one call.
fn median(mut f: impl FnMut()) -> f64 {
    let mut repeat = 1u32;
    loop {
        let t = Instant::now();
        (0..repeat).for_each(|_| f());
        if t.elapsed().as_micros() > 200 {
            break;
        }
        repeat *= 2;
    }
    let mut times: Vec<f64> = (0..25)
        .map(|_| {
            let t = Instant::now();
            (0..repeat).for_each(|_| f());
            t.elapsed().as_nanos() as f64 / repeat as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Benchmarks one kernel on zeroed-to-one memory.
fn bench(filter: &str, name: &str, kernel: Kernel) {
    if !name.contains(filter) {
        return;
    }
    let isa = Isa::best();
    let program = Program::compile(&kernel, isa).unwrap();
    let compile = median(|| drop(black_box(Program::compile(&kernel, isa).unwrap())));
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Line([u64; 8]);
    let mut memory: Vec<Vec<Line>> = kernel
        .args
        .iter()
        .map(|a| {
            let bytes = a.len * a.dtype.size();
            let mut words = vec![Line([0; 8]); bytes.div_ceil(64)];
            if a.dtype == DType::F32 {
                for (i, w) in words.iter_mut().flat_map(|l| &mut l.0).enumerate() {
                    let v = |i: usize| ((i as f32 * 0.37).sin() * 2.0).to_bits() as u64;
                    *w = v(2 * i) | v(2 * i + 1) << 32;
                }
            }
            words
        })
        .collect();
    let slots: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let params = vec![1.0f32.to_bits() as u64; kernel.params.len()];
    let ns = median(|| {
        // SAFETY: every argument has its memory.
        black_box(unsafe { program.run(slots.as_ptr(), params.as_ptr(), 0, 1) });
    });
    let points: usize = kernel.domain.iter().product();
    let rate = points as f64 / ns;
    println!(
        "{name:<28} {ns:>10.0} ns {rate:>7.2} Gelem/s  estimate {:>10.0} ns  compile {:>6.1} us  {} instrs",
        program.cost_ns(),
        compile / 1000.0,
        kernel.body.len()
    );
}

/// A pointwise kernel of one input over `n` elements.
fn unary(n: usize, f: impl FnOnce(&mut Builder, Val) -> Val) -> Kernel {
    let mut b = Builder::new(&[n], &[false]);
    let (x, y) = (b.input(DType::F32, n), b.output(DType::F32, n));
    let v = b.load(Access::row_major(x, &[n]));
    let v = f(&mut b, v);
    b.store(Access::row_major(y, &[n]), v);
    b.finish().unwrap()
}

/// `x * a + b`, `times` over, with `a` and `b` arrays or host scalars.
fn chain(n: usize, times: usize, arrays: bool) -> Kernel {
    let mut b = Builder::new(&[n], &[false]);
    let input = |b: &mut Builder| {
        let x = b.input(DType::F32, n);
        b.load(Access::row_major(x, &[n]))
    };
    let mut v = input(&mut b);
    let [m, a] = [0; 2].map(|_| if arrays { input(&mut b) } else { b.param(Ty::F32) });
    let y = b.output(DType::F32, n);
    for _ in 0..times {
        v = b.fma(v, m, a);
    }
    b.store(Access::row_major(y, &[n]), v);
    b.finish().unwrap()
}

/// 50 ops: add y, multiply by y, tanh, relu, and so on.
fn fifty(n: usize) -> Kernel {
    let mut b = Builder::new(&[n], &[false]);
    let [x, y] = [0; 2].map(|_| b.input(DType::F32, n));
    let out = b.output(DType::F32, n);
    let [mut v, y] = [x, y].map(|x| b.load(Access::row_major(x, &[n])));
    for i in 0..50 {
        v = match i % 4 {
            0 => b.add(v, y),
            1 => b.mul(v, y),
            2 => math::tanh(&mut b, v),
            _ => {
                let zero = b.f32(0.0);
                b.max(v, zero)
            }
        };
    }
    b.store(Access::row_major(out, &[n]), v);
    b.finish().unwrap()
}

fn rows(m: usize, n: usize, f: impl FnOnce(&mut Builder, Val, usize) -> Val) -> Kernel {
    let mut b = Builder::new(&[m, n], &[false, true]);
    let (x, y) = (b.input(DType::F32, m * n), b.output(DType::F32, m * n));
    let v = b.load(Access::row_major(x, &[m, n]));
    let v = f(&mut b, v, n);
    b.store(Access::row_major(y, &[m, n]), v);
    b.finish().unwrap()
}

fn softmax(b: &mut Builder, x: Val, _: usize) -> Val {
    let max = b.reduce(Combine::Max, x);
    let d = b.sub(x, max);
    let e = math::exp(b, d);
    let sum = b.reduce(Combine::Sum, e);
    b.div(e, sum)
}

fn layer_norm(b: &mut Builder, x: Val, n: usize) -> Val {
    let scale = b.f32(1.0 / n as f32);
    let sum = b.reduce(Combine::Sum, x);
    let mean = b.mul(sum, scale);
    let d = b.sub(x, mean);
    let square = b.mul(d, d);
    let sum = b.reduce(Combine::Sum, square);
    let var = b.mul(sum, scale);
    let eps = b.f32(1e-5);
    let var = b.add(var, eps);
    let deviation = b.sqrt(var);
    b.div(d, deviation)
}

/// A sum over the axes marked.
fn sum(domain: &[usize], reduced: &[bool]) -> Kernel {
    let mut b = Builder::new(domain, reduced);
    let n = domain.iter().product();
    let kept: Vec<usize> = domain.iter().zip(reduced).map(|(&d, &r)| if r { 1 } else { d }).collect();
    let (x, y) = (b.input(DType::F32, n), b.output(DType::F32, kept.iter().product()));
    let v = b.load(Access::row_major(x, domain));
    let s = b.reduce(Combine::Sum, v);
    let mut out = Access::row_major(y, &kept);
    out.strides.iter_mut().zip(reduced).for_each(|(s, &r)| *s = if r { 0 } else { *s });
    b.store(out, s);
    b.finish().unwrap()
}

/// A bias along the last axis, then relu.
fn bias(m: usize, n: usize) -> Kernel {
    let mut b = Builder::new(&[m, n], &[false, false]);
    let (x, c, y) = (b.input(DType::F32, m * n), b.input(DType::F32, n), b.output(DType::F32, m * n));
    let x = b.load(Access::row_major(x, &[m, n]));
    let c = b.load(Access::strided(c, 0, &[0, 1]));
    let v = b.add(x, c);
    let zero = b.f32(0.0);
    let v = b.max(v, zero);
    b.store(Access::row_major(y, &[m, n]), v);
    b.finish().unwrap()
}

/// Copies a transposed matrix.
fn transpose(m: usize, n: usize) -> Kernel {
    let mut b = Builder::new(&[m, n], &[false, false]);
    let (x, y) = (b.input(DType::F32, m * n), b.output(DType::F32, m * n));
    let v = b.load(Access::strided(x, 0, &[1, m as i64]));
    b.store(Access::row_major(y, &[m, n]), v);
    b.finish().unwrap()
}

/// Adam's update of one parameter tensor.
fn adam(n: usize) -> Kernel {
    let mut b = Builder::new(&[n], &[false]);
    let [p, g, m, v] = [0; 4].map(|_| b.input(DType::F32, n));
    let [po, mo, vo] = [0; 3].map(|_| b.output(DType::F32, n));
    let [p, g, m, v] = [p, g, m, v].map(|x| b.load(Access::row_major(x, &[n])));
    let (lr, b1, b2) = (b.f32(1e-3), b.f32(0.9), b.f32(0.999));
    let (c1, c2, eps) = (b.f32(0.1), b.f32(0.001), b.f32(1e-8));
    let (x, y) = (b.mul(m, b1), b.mul(g, c1));
    let m = b.add(x, y);
    let gg = b.mul(g, g);
    let (x, y) = (b.mul(v, b2), b.mul(gg, c2));
    let v = b.add(x, y);
    let s = b.sqrt(v);
    let d = b.add(s, eps);
    let (top, _) = (b.mul(m, lr), 0);
    let q = b.div(top, d);
    let p = b.sub(p, q);
    for (out, v) in [(po, p), (mo, m), (vo, v)] {
        b.store(Access::row_major(out, &[n]), v);
    }
    b.finish().unwrap()
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with("--")).unwrap_or_default();
    let clock = median(|| {
        let mut x = 1u64;
        (0..1000).for_each(|_| x = black_box(x).wrapping_mul(3));
        black_box(x);
    });
    println!("isa: {}; 1000 dependent steps: {clock:.0} ns", Isa::best().name());
    let n = 1 << 14;
    let run = |name: &str, kernel: Kernel| bench(&filter, name, kernel);
    for times in [1, 8, 32] {
        run(&format!("chain {times}, arrays"), chain(n, times, true));
        run(&format!("chain {times}, scalars"), chain(n, times, false));
    }
    run("exp", unary(n, math::exp));
    run("tanh", unary(n, math::tanh));
    run("cos", unary(n, math::cos));
    run("log", unary(n, math::log));
    run("erf", unary(n, math::erf));
    run("sigmoid", unary(n, math::sigmoid));
    run(
        "relu",
        unary(n, |b, x| {
            let zero = b.f32(0.0);
            b.max(x, zero)
        }),
    );
    run("adam", adam(n));
    run("small 16, neg", unary(16, |b, x| b.neg(x)));
    run("small 16, fma", chain(16, 1, true));
    run("small 100, tanh", unary(100, math::tanh));
    run("fifty 1024", fifty(1024));
    run("fifty 128", fifty(128));
    run("bias relu 32x10", bias(32, 10));
    run("bias relu 1000x10", bias(1000, 10));
    run("bias relu 32x128", bias(32, 128));
    run("bias relu 64x100", bias(64, 100));
    run("softmax 64x1024", rows(64, 1024, softmax));
    run("softmax 32x10", rows(32, 10, softmax));
    run("softmax 4096x10", rows(4096, 10, softmax));
    run("layer norm 64x1024", rows(64, 1024, layer_norm));
    run("layer norm 64x100", rows(64, 100, layer_norm));
    run("sum rows 64x1024", sum(&[64, 1024], &[false, true]));
    run("sum columns 1024x64", sum(&[1024, 64], &[true, false]));
    run("sum columns 32x10", sum(&[32, 10], &[true, false]));
    run("sum columns 1000x10", sum(&[1000, 10], &[true, false]));
    run("sum columns 256x1024", sum(&[256, 1024], &[true, false]));
    run("sum all 1M", sum(&[1 << 20], &[true]));
    run("sum channels 32x16x8x8", sum(&[32, 16, 64], &[true, false, true]));
    run("transpose 256x256", transpose(256, 256));
    run("transpose 10x1000", transpose(10, 1000));
}
