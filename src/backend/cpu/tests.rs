use std::sync::Arc;

use super::*;
use crate::backend::{InputBinding, Launch, LaunchResult};
use crate::base::dtype::Element;
use crate::base::{DType, ErrorKind, Layout, Shape, Type};
use crate::kernel::library::{self, Library, Operand, ScatterAdd};
use crate::kernel::{Access, Builder, Dynamic, Kernel, Ty};
use crate::plan::check::check;
use crate::plan::{OutputStorage, Plan, PlanInput, PlanOutput, Slot, SlotKind, Step, StepKind};

/// Builds plans by hand.
#[derive(Default)]
struct Plans(Plan);

fn ty(dtype: DType, dims: &[usize]) -> Type {
    Type::new(dtype, Shape::new(dims).unwrap())
}

impl Plans {
    fn slot(&mut self, kind: SlotKind, bytes: usize) -> u32 {
        self.0.slots.push(Slot { kind, bytes });
        self.0.slots.len() as u32 - 1
    }

    fn input(&mut self, ty: Type) -> u32 {
        let (layout, bytes) = (Layout::contiguous(ty.shape), ty.bytes());
        self.0.inputs.push(PlanInput { ty, layout, bytes, var: true });
        self.slot(SlotKind::Input(self.0.inputs.len() as u32 - 1), bytes)
    }

    fn output(&mut self, ty: Type, in_place: Option<u32>) -> u32 {
        let (layout, bytes) = (Layout::contiguous(ty.shape), ty.bytes());
        self.0.outputs.push(PlanOutput { ty, storage: OutputStorage::Own { bytes }, layout, in_place });
        self.slot(SlotKind::Output(self.0.outputs.len() as u32 - 1), bytes)
    }

    fn temporary(&mut self, ty: Type) -> u32 {
        let offset = self.0.arena_bytes;
        self.0.arena_bytes += ty.bytes().next_multiple_of(64);
        self.slot(SlotKind::Arena { offset }, ty.bytes())
    }

    fn step(&mut self, kind: StepKind, args: &[u32], params: &[u32]) {
        let at = self.0.steps.len() as u32;
        self.0.edges.extend((0..at).map(|from| (from, at)));
        let (args, params) = (args.to_vec(), params.to_vec());
        self.0.steps.push(Step { kind, args, params, locs: Vec::new(), label: String::new() });
    }

    fn kernel(&mut self, kernel: Kernel, args: &[u32], params: &[u32]) {
        self.step(StepKind::Kernel(kernel), args, params);
    }

    fn done(self) -> Checked {
        check(self.0).unwrap()
    }
}

/// out = a + b over `n` elements.
fn add(n: usize) -> Kernel {
    let mut k = Builder::new(&[n], &[false]);
    let (a, b, out) = (k.input(DType::F32, n), k.input(DType::F32, n), k.output(DType::F32, n));
    let (a, b) = (k.load(Access::row_major(a, &[n])), k.load(Access::row_major(b, &[n])));
    let sum = k.add(a, b);
    k.store(Access::row_major(out, &[n]), sum);
    k.finish().unwrap()
}

/// out = a * p over `n` elements.
fn scale(n: usize) -> Kernel {
    let mut k = Builder::new(&[n], &[false]);
    let (a, out) = (k.input(DType::F32, n), k.output(DType::F32, n));
    let p = k.param(Ty::F32);
    let a = k.load(Access::row_major(a, &[n]));
    let product = k.mul(a, p);
    k.store(Access::row_major(out, &[n]), product);
    k.finish().unwrap()
}

/// out[i] = x[t[i]] over `n` elements.
fn gather(n: usize) -> Kernel {
    let mut k = Builder::new(&[n], &[false]);
    let (x, t, out) = (k.input(DType::F32, n), k.input(DType::I64, n), k.output(DType::F32, n));
    let at = k.load(Access::row_major(t, &[n]));
    let v = k.gather(Access::strided(x, 0, &[0]), at, 1, n as i64);
    k.store(Access::row_major(out, &[n]), v);
    k.finish().unwrap()
}

/// outputs: z = (x + y) * p, and w = x + z in place of x.
fn two_steps(n: usize) -> Checked {
    let t = ty(DType::F32, &[n]);
    let mut p = Plans::default();
    p.0.params = vec![DType::I64, DType::F32];
    let (x, y) = (p.input(t), p.input(t));
    let (sum, z, w) = (p.temporary(t), p.output(t, None), p.output(t, Some(0)));
    p.kernel(add(n), &[x, y, sum], &[]);
    p.kernel(scale(n), &[sum, z], &[1]);
    p.kernel(add(n), &[x, z, w], &[]);
    p.done()
}

fn backends() -> Vec<Arc<CpuBackend>> {
    [true, false]
        .map(|compiled| {
            let options = Options { threads: Some(2), compiled_dispatch: Some(compiled), ..Options::default() };
            CpuBackend::new(options).unwrap()
        })
        .to_vec()
}

/// A launch with contiguous inputs.
fn launch(
    exe: &Arc<dyn Executable>,
    inputs: &[(&Buffer, Type, bool)],
    params: &[u64],
) -> Result<(LaunchResult, Vec<Option<Buffer>>)> {
    let layouts: Vec<Layout> = inputs.iter().map(|(_, t, _)| Layout::contiguous(t.shape)).collect();
    let bindings: Vec<InputBinding> = inputs
        .iter()
        .zip(&layouts)
        .map(|(&(buffer, t, exclusive), layout)| InputBinding { buffer, layout, dtype: t.dtype, exclusive })
        .collect();
    let mut outputs = Vec::new();
    let result = exe.launch(&mut Launch { inputs: &bindings, params, outputs: &mut outputs })?;
    Ok((result, outputs))
}

fn read<T: Element>(backend: &CpuBackend, buffer: &Buffer) -> Vec<T> {
    let mut bytes = vec![0; buffer.bytes()];
    backend.download(buffer, 0, &mut bytes).unwrap();
    T::from_bytes(&bytes)
}

fn upload<T: Element>(backend: &CpuBackend, values: &[T]) -> Buffer {
    backend.upload(&T::to_bytes(values)).unwrap()
}

const HALF: u64 = 0x3F00_0000;

#[test]
fn a_plan_computes_and_counts() {
    for backend in backends() {
        let t = ty(DType::F32, &[3]);
        let exe = backend.compile(two_steps(3)).unwrap();
        let (x, y) = (upload(&backend, &[1f32, 2.0, 3.0]), upload(&backend, &[3f32, 4.0, 5.0]));
        let before = backend.counters().read();
        let (result, out) = launch(&exe, &[(&x, t, false), (&y, t, false)], &[7, HALF]).unwrap();
        assert_eq!(result, LaunchResult::default());
        assert_eq!(read::<f32>(&backend, out[0].as_ref().unwrap()), [2.0, 3.0, 4.0]);
        assert_eq!(read::<f32>(&backend, out[1].as_ref().unwrap()), [3.0, 5.0, 7.0]);
        assert_eq!(read::<f32>(&backend, &x), [1.0, 2.0, 3.0], "not exclusive: x is kept");
        let counts = backend.counters().read() - before;
        assert_eq!((counts.launches, counts.kernels, counts.eager_kernels, counts.downloads), (1, 3, 0, 3));
        assert_eq!((exe.kernels(), exe.arena_bytes()), (3, 64));
        let before = backend.counters().read();
        let eager = backend.compile_eager(two_steps(3)).unwrap();
        launch(&eager, &[(&x, t, false), (&y, t, false)], &[7, HALF]).unwrap();
        let counts = backend.counters().read() - before;
        assert_eq!((counts.launches, counts.kernels, counts.eager_kernels, counts.compiles), (0, 0, 3, 0));
    }
}

#[test]
fn in_place_only_when_exclusive() {
    for backend in backends() {
        let t = ty(DType::F32, &[3]);
        let exe = backend.compile(two_steps(3)).unwrap();
        let (x, y) = (upload(&backend, &[1f32, 2.0, 3.0]), upload(&backend, &[3f32, 4.0, 5.0]));
        let (result, out) = launch(&exe, &[(&x, t, true), (&y, t, false)], &[0, HALF]).unwrap();
        assert_eq!(result.in_place, 1);
        assert!(Arc::ptr_eq(out[1].as_ref().unwrap(), &x));
        assert_eq!(read::<f32>(&backend, &x), [3.0, 5.0, 7.0]);
    }
}

#[test]
fn guards_refuse_before_anything_ran() {
    for backend in backends() {
        let t = ty(DType::F32, &[3]);
        let exe = backend.compile(two_steps(3)).unwrap();
        let (x, y) = (upload(&backend, &[1f32, 2.0, 3.0]), upload(&backend, &[3f32, 4.0, 5.0]));
        let small = upload(&backend, &[1f32, 2.0]);
        // So that the arena exists.
        launch(&exe, &[(&x, t, false), (&y, t, false)], &[0, HALF]).unwrap();
        let before = (backend.counters().read(), backend.memory().live_bytes);
        let refuse = |inputs: &[(&Buffer, Type, bool)], params: &[u64], expected: &str| {
            let e = launch(&exe, inputs, params).err().unwrap().to_string();
            assert!(e.contains(expected), "{e}");
        };
        refuse(&[(&x, t, true)], &[0, HALF], "2 inputs");
        refuse(&[(&x, t, true), (&y, t, false)], &[HALF], "2 parameters");
        refuse(&[(&x, t, true), (&y, ty(DType::I64, &[3]), false)], &[0, HALF], "input 1: f32[3]");
        refuse(&[(&x, t, true), (&y, ty(DType::F32, &[4]), false)], &[0, HALF], "got f32[4]");
        refuse(&[(&x, t, true), (&y, ty(DType::F32, &[3, 1]), false)], &[0, HALF], "got f32[3,1]");
        refuse(&[(&small, t, true), (&y, t, false)], &[0, HALF], "12 bytes");
        let shifted = Layout { offset: 1, ..Layout::contiguous(t.shape) };
        let strided = Layout { strides: [2; 8], ..Layout::contiguous(t.shape) };
        let plain = Layout::contiguous(t.shape);
        for layout in [shifted, strided] {
            let bind = |buffer, layout, exclusive| InputBinding { buffer, layout, dtype: DType::F32, exclusive };
            let mut outputs = Vec::new();
            let inputs = [bind(&x, &plain, true), bind(&y, &layout, false)];
            assert!(exe.launch(&mut Launch { inputs: &inputs, params: &[0, HALF], outputs: &mut outputs }).is_err());
        }
        assert_eq!(before, (backend.counters().read(), backend.memory().live_bytes));
        assert_eq!(read::<f32>(&backend, &x), [1.0, 2.0, 3.0]);
        let null = crate::backend::null::NullBackend::new().alloc(12).unwrap();
        refuse(&[(&null, t, true), (&y, t, false)], &[0, HALF], "another device");
    }
}

#[test]
fn a_slice_start_out_of_range_is_refused() {
    // out[i] = x[i + p], p in 0..=2.
    let mut k = Builder::new(&[2], &[false]);
    let (x, out) = (k.input(DType::F32, 4), k.output(DType::F32, 2));
    let start = k.add_param(Ty::I64);
    let mut access = Access::strided(x, 0, &[1]);
    access.dynamic.push(Dynamic { param: start, stride: 1, max: 2 });
    let v = k.load(access);
    k.store(Access::row_major(out, &[2]), v);
    let kernel = k.finish().unwrap();
    for backend in backends() {
        let mut p = Plans::default();
        p.0.params = vec![DType::F32, DType::I64];
        let (x, out) = (p.input(ty(DType::F32, &[4])), p.output(ty(DType::F32, &[2]), None));
        p.kernel(kernel.clone(), &[x, out], &[1]);
        let exe = backend.compile(p.done()).unwrap();
        let x = upload(&backend, &[1f32, 2.0, 3.0, 4.0]);
        let go = |start: i64| launch(&exe, &[(&x, ty(DType::F32, &[4]), false)], &[u64::MAX, start as u64]);
        let (_, out) = go(2).unwrap();
        assert_eq!(read::<f32>(&backend, out[0].as_ref().unwrap()), [3.0, 4.0]);
        assert!(go(3).err().unwrap().to_string().contains("0..=2"));
        assert!(go(-1).err().unwrap().to_string().contains("got -1"));
    }
}

#[test]
fn a_flag_before_a_write_in_place_saves_the_input() {
    // g = x[t]; out = g + g in place of v.
    for backend in backends() {
        let t = ty(DType::F32, &[3]);
        let mut p = Plans::default();
        let (x, i, _v) = (p.input(t), p.input(ty(DType::I64, &[3])), p.input(t));
        let (g, out) = (p.temporary(t), p.output(t, Some(2)));
        p.kernel(gather(3), &[x, i, g], &[]);
        p.kernel(add(3), &[g, g, out], &[]);
        let exe = backend.compile(p.done()).unwrap();
        let (x, v) = (upload(&backend, &[1f32, 2.0, 3.0]), upload(&backend, &[9f32; 3]));
        for (index, exclusive, flag, expected) in [
            ([0i64, 1, 3], true, true, [2.0, 4.0, 6.0]),
            ([0, 1, 3], false, true, [2.0, 4.0, 6.0]),
            ([2, 1, 0], true, false, [6.0, 4.0, 2.0]),
        ] {
            let i = upload(&backend, &index);
            let inputs = [(&x, t, false), (&i, ty(DType::I64, &[3]), false), (&v, t, exclusive)];
            let (result, out) = launch(&exe, &inputs, &[]).unwrap();
            assert_eq!(result, LaunchResult { index_flag: flag, in_place: !flag as u32, ..LaunchResult::default() });
            assert_eq!(read::<f32>(&backend, out[0].as_ref().unwrap()), expected);
            assert_eq!(read::<f32>(&backend, &v) == [9.0; 3], flag);
        }
    }
}

#[test]
fn running_out_of_memory_is_an_error_and_nothing_more() {
    for backend in backends() {
        let n = 1 << 16;
        let t = ty(DType::F32, &[n]);
        let exe = backend.compile(two_steps(n)).unwrap();
        let (x, y) = (upload(&backend, &vec![1f32; n]), upload(&backend, &vec![2f32; n]));
        // The arena fits, the outputs do not.
        for room in [3, 2] {
            backend.set_memory_limit(Some(room * 4 * n));
            let e = launch(&exe, &[(&x, t, false), (&y, t, false)], &[0, HALF]).err().unwrap();
            assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
            assert!(backend.alloc(room * 4 * n).is_err());
        }
        assert_eq!(read::<f32>(&backend, &x), vec![1.0; n]);
        backend.set_memory_limit(None);
        let (_, out) = launch(&exe, &[(&x, t, true), (&y, t, false)], &[0, HALF]).unwrap();
        assert_eq!(read::<f32>(&backend, out[1].as_ref().unwrap()), vec![2.5; n]);
    }
}

#[test]
fn threads_share_an_executable() {
    for backend in backends() {
        let n = 257;
        let t = ty(DType::F32, &[n]);
        let exe = backend.compile(two_steps(n)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (backend, exe) = (&backend, &exe);
                scope.spawn(move || {
                    let (x, y) = (upload(backend, &vec![thread as f32; n]), upload(backend, &vec![1f32; n]));
                    for _ in 0..200 {
                        let (_, out) = launch(exe, &[(&x, t, false), (&y, t, false)], &[0, HALF]).unwrap();
                        let expected = vec![(thread as f32 + 1.0) / 2.0; n];
                        assert_eq!(read::<f32>(backend, out[0].as_ref().unwrap()), expected);
                    }
                });
            }
        });
    }
}

#[test]
fn dropping_executables_returns_their_memory() {
    for backend in backends() {
        let (small, large) = (ty(DType::F32, &[100]), ty(DType::F32, &[10_000]));
        let before = backend.memory().live_bytes;
        let run = |exe: &Arc<dyn Executable>, t: Type| {
            let x = upload(&backend, &vec![1f32; t.shape.numel()]);
            launch(exe, &[(&x, t, false), (&x, t, false)], &[0, HALF]).unwrap();
        };
        let (a, b) = (backend.compile(two_steps(100)).unwrap(), backend.compile(two_steps(10_000)).unwrap());
        run(&a, small);
        run(&b, large);
        let both = backend.memory().live_bytes - before;
        assert!((40_000..60_000).contains(&both), "one arena for both: {both}");
        drop(b);
        run(&a, small);
        assert!(backend.memory().live_bytes - before < 1000);
        drop(a);
        assert_eq!(backend.memory().live_bytes, before);
    }
}

#[test]
fn batched_matmul_with_any_batch_axes() {
    // c[i, j] = a[i, j] (2x3) * b[j] (3x2), with i in 0..2, j in 0..2 and `a` stored as [j, i, 2, 3].
    let op = |batch: [i64; 2], row: i64| Operand { offset: 0, batch: batch.to_vec(), row, col: 1 };
    let matmul = library::Matmul {
        dtype: DType::F32,
        batch: vec![2, 2],
        m: 2,
        k: 3,
        n: 2,
        a: op([6, 12], 3),
        b: op([0, 6], 2),
        c: op([8, 4], 2),
    };
    let a: Vec<f32> = (0..24).map(|v| v as f32).collect();
    let b: Vec<f32> = (0..12).map(|v| (v * v % 7) as f32).collect();
    let mut expected = vec![0f32; 16];
    for (i, j, m, n, k) in itertools(2, 2, 2, 2, 3) {
        expected[i * 8 + j * 4 + m * 2 + n] += a[i * 6 + j * 12 + m * 3 + k] * b[j * 6 + k * 2 + n];
    }
    for backend in backends() {
        let mut p = Plans::default();
        let (ta, tb) = (ty(DType::F32, &[24]), ty(DType::F32, &[12]));
        let (sa, sb, sc) = (p.input(ta), p.input(tb), p.output(ty(DType::F32, &[16]), None));
        p.step(StepKind::Library(Library::Matmul(matmul.clone())), &[sa, sb, sc], &[]);
        let exe = backend.compile(p.done()).unwrap();
        let (_, out) =
            launch(&exe, &[(&upload(&backend, &a), ta, false), (&upload(&backend, &b), tb, false)], &[]).unwrap();
        assert_eq!(read::<f32>(&backend, out[0].as_ref().unwrap()), expected);
    }
}

fn itertools(a: usize, b: usize, c: usize, d: usize, e: usize) -> Vec<(usize, usize, usize, usize, usize)> {
    let n = a * b * c * d * e;
    (0..n).map(|x| (x / (b * c * d * e), x / (c * d * e) % b, x / (d * e) % c, x / e % d, x % e)).collect()
}

#[test]
fn scatter_add_clamps_and_flags() {
    for backend in backends() {
        for (inner_stride, index) in [(1, vec![0i64, 2, 2, 0, 5, -1]), (0, vec![2i64, 2, 0])] {
            let scatter = ScatterAdd {
                dtype: DType::F32,
                outer: 1,
                count: 3,
                len: 3,
                inner: 2,
                index: [0, if inner_stride == 1 { 2 } else { 1 }, inner_stride],
                src: [0, 2, 1],
            };
            let mut p = Plans::default();
            let (ti, ts) = (ty(DType::I64, &[index.len()]), ty(DType::F32, &[6]));
            let (i, s, o) = (p.input(ti), p.input(ts), p.output(ts, None));
            p.step(StepKind::Library(Library::ScatterAdd(scatter)), &[i, s, o], &[]);
            let exe = backend.compile(p.done()).unwrap();
            let (index, src) = (upload(&backend, &index), upload(&backend, &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]));
            let (result, out) = launch(&exe, &[(&index, ti, false), (&src, ts, false)], &[]).unwrap();
            assert_eq!(result.index_flag, inner_stride == 1);
            let expected =
                if inner_stride == 1 { [1.0, 10.0, 0.0, 0.0, 8.0, 2.0] } else { [5.0, 6.0, 0.0, 0.0, 4.0, 6.0] };
            assert_eq!(read::<f32>(&backend, out[0].as_ref().unwrap()), expected);
        }
    }
}

#[test]
fn downloads_are_bounded() {
    let backend = CpuBackend::new(Options::default()).unwrap();
    let x = upload(&backend, &[1i64, 2, 3]);
    let mut out = [0; 8];
    backend.download(&x, 16, &mut out).unwrap();
    assert_eq!(i64::from_ne_bytes(out), 3);
    assert!(backend.download(&x, 17, &mut out).is_err());
    assert!(backend.download(&x, usize::MAX, &mut out).is_err());
}
