//! Bad input: an error that says what, where and what to do; never a panic, and the thread goes on.

mod harness;

use harness::{own_device, values, vector};
use stepgraph::autograd::{self, GradOptions, Wrt};
use stepgraph::nn::Linear;
use stepgraph::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use stepgraph::{CpuOptions, DType, Device, Error, ErrorKind, Gradients, Result, Rng, Shape, Tensor, Var, jit};

/// What a message must say besides the place.
struct Expected {
    name: &'static str,
    says: &'static [&'static str],
}

/// Runs `wrong` eagerly and as calls 1 to 4 of a step (bad at calls 1, 3 and 4): always the same error, at
/// `line`; the thread and the step are usable afterwards.
fn check(device: &Device, expected: &Expected, line: u32, wrong: &dyn Fn() -> Result<()>) {
    let name = expected.name;
    let good = vector(&[1.0, 2.0], device);
    let sane = |when: &str| {
        assert_eq!(values(&(&good + 1.0).expect("an eager op")), [2.0, 3.0], "{name}: {when}");
    };
    let eager = wrong().expect_err(name);
    assert_says(expected, &eager, line);
    sane("after the eager error");
    let mut step = jit::Step::new();
    let count = Var::state(&vector(&[0.0], device)).expect("a Var");
    let mut want = 0.0;
    for k in 0..5 {
        let bad = k != 1;
        want += 1.0;
        let result = step.run(|| {
            count.set(&(count.get() + 1.0)?)?;
            if bad {
                wrong()?;
            }
            &good * 3.0
        });
        match result {
            Ok(y) => {
                assert!(!bad, "{name}: call {} went well", k + 1);
                assert_eq!(values(&y), [3.0, 6.0]);
            }
            Err(e) => {
                assert!(bad, "{name}: call {} failed: {e}", k + 1);
                assert_says(expected, &e, line);
            }
        }
        assert_eq!(values(&count.get()), [want], "{name}: what came before the error has happened once");
        sane("after a call");
    }
}

fn assert_says(expected: &Expected, e: &Error, line: u32) {
    let text = e.to_string();
    for part in expected.says {
        assert!(text.contains(part), "{}: `{part}` is missing in: {text}", expected.name);
    }
    assert_eq!(e.loc().file(), Some(file!()), "{}: {text}", expected.name);
    assert_eq!(e.loc().line(), Some(line), "{}: {text}", expected.name);
    assert!(text.contains(&format!("{}:{line}", file!())), "{}: the place is not in the text: {text}", expected.name);
    assert!(!matches!(e.kind(), ErrorKind::Bug { .. }), "{text}");
}

/// Checks one wrong expression, which stands on the line of the macro's name.
macro_rules! wrong {
    ($device:expr, $name:literal, [$($says:literal),* $(,)?], $wrong:expr) => {
        check($device, &Expected { name: $name, says: &[$($says),*] }, line!(), &|| $wrong.map(|_| ()))
    };
}

#[test]
fn shapes() {
    let d = &own_device();
    let (a, b) = (vector(&[1.0, 2.0, 3.0], d), vector(&[1.0, 2.0], d));
    let m = Tensor::zeros([2, 3], DType::F32, d).expect("zeros");
    let empty = Tensor::zeros([0, 3], DType::F32, d).expect("zeros");
    wrong!(d, "add", ["add", "[3]", "[2]"], &a + &b);
    wrong!(d, "method", ["mul", "[3]", "[2]"], a.mul(&b));
    wrong!(d, "matmul", ["matmul", "[2,3]"], m.matmul(&m));
    wrong!(d, "matmul of vectors", ["matmul", "3 rows on the right", "[2,1]"], a.matmul(&b));
    wrong!(d, "reshape", ["reshape", "6"], m.reshape([7]));
    wrong!(d, "expand", ["expand"], a.expand([2, 4]));
    wrong!(d, "concat", ["concat"], Tensor::concat(&[&m, &a], 0));
    wrong!(d, "concat of nothing", ["concat", "at least one"], Tensor::concat(&[], 0));
    wrong!(d, "axis of a sum", ["sum", "axis"], m.sum(2));
    wrong!(d, "axis twice", ["sum", "once"], m.sum([0, -2]));
    wrong!(d, "max of nothing", ["max"], empty.max(0));
    wrong!(d, "slice", ["slice", "3"], a.slice(0, 2, 2));
    wrong!(d, "slice far out", ["slice"], a.slice(0, usize::MAX, 2));
    wrong!(d, "permute", ["permute", "2"], m.permute(&[0]));
    wrong!(d, "permute twice", ["permute"], m.permute(&[1, 1]));
    wrong!(d, "transpose", ["transpose", "axis"], m.transpose(0, 5));
    wrong!(d, "squeeze", ["squeeze", "length 1"], m.squeeze(0));
    wrong!(d, "unsqueeze", ["unsqueeze", "axis"], m.unsqueeze(4));
    wrong!(d, "item", ["item", "one element"], m.item::<f32>());
    wrong!(d, "from_vec", ["4 values", "3 values"], Tensor::from_vec(vec![1.0f32; 3], [2, 2], d));
    wrong!(d, "too many axes", ["axes"], Tensor::zeros([1; 9], DType::F32, d));
    wrong!(d, "select", ["select"], m.gt(0.0).expect("a mask").select(&a, &b));
    wrong!(d, "layer without inputs", ["Linear", "at least one input"], Linear::new(0, 3, &Rng::seed_from(0), d));
}

#[test]
fn a_layer_of_another_width() {
    let d = &own_device();
    let layer = Linear::new(4, 2, &Rng::seed_from(0), d).expect("a layer");
    let x = Tensor::zeros([5, 3], DType::F32, d).expect("zeros");
    // Attributed to the user's line, not the layer's.
    wrong!(d, "forward", ["matmul", "[5,3]", "[4,2]"], layer.forward(&x));
    let labels = Tensor::zeros([4], DType::I64, d).expect("labels");
    wrong!(d, "cross entropy", ["cross_entropy", "labels"], x.cross_entropy(&labels));
}

/// Composites and layers: at the user's line, by their own name.
#[test]
fn composites_and_layers() {
    use stepgraph::nn::{
        Attention, BatchNorm1d, BatchNorm2d, Conv2d, Convolution, Dropout, LayerNorm, MultiHeadAttention,
    };
    use stepgraph::nn::{GruCell, LstmCell, Pooling, Reduction};
    let d = &own_device();
    let rng = Rng::seed_from(0);
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, d).expect("zeros");
    let (x, image) = (zeros(&[5, 3]), zeros(&[2, 3, 4, 4]));
    let i = x.to_dtype(DType::I64).expect("integers");
    let plain = Convolution::default();
    wrong!(d, "softmax of integers", ["softmax", "i64", "to_dtype"], i.softmax(0));
    wrong!(d, "gelu of integers", ["gelu", "i64"], i.gelu());
    wrong!(d, "weight of a norm", ["layer_norm", "[5,3]", "[4]"], x.layer_norm(-1, Some(&zeros(&[4])), None, 1e-5));
    wrong!(d, "axis of a norm", ["axis"], x.layer_norm(2, None, None, 1e-5));
    wrong!(d, "one value per channel", ["batch_norm", "more than one"], zeros(&[1, 3]).batch_norm(&Default::default()));
    wrong!(d, "probability", ["dropout", "0 to 1", "1.5"], x.dropout(1.5, &rng));
    wrong!(d, "float ids", ["embedding", "integer ids"], x.embedding(&x));
    wrong!(d, "float labels", ["cross_entropy", "integer labels"], x.cross_entropy(&zeros(&[5])));
    wrong!(d, "delta", ["huber", "above 0"], x.huber(&x, 0.0, Reduction::Mean));
    wrong!(d, "channels", ["conv2d", "3 channels"], image.conv2d(&zeros(&[4, 2, 3, 3]), None, &plain));
    wrong!(d, "window", ["max_pool2d", "within 4"], image.max_pool2d(&Pooling::new([5, 5])));
    wrong!(d, "windows over an axis", ["window", "axis 1"], x.window(1, 4, 1, 1));
    wrong!(d, "fold", ["fold", "length 2"], x.fold(0, 2, 1, 1));
    let all = Attention::default();
    wrong!(d, "attention", ["attention", "keys"], x.scaled_dot_product_attention(&zeros(&[5, 2]), &x, &all));
    wrong!(d, "no channels", ["Conv2d", "0 and 4"], Conv2d::new(0, 4, [3, 3], plain, &rng, d));
    wrong!(d, "heads", ["MultiHeadAttention", "multiple"], MultiHeadAttention::new(6, 4, &rng, d));
    let norm = LayerNorm::new([4], d).expect("a layer");
    wrong!(d, "another width", ["LayerNorm", "[4]", "[5,3]"], norm.forward(&x));
    let (one, two) = (BatchNorm1d::new(3, d).expect("a layer"), BatchNorm2d::new(3, d).expect("a layer"));
    wrong!(d, "too many axes", ["BatchNorm1d", "[2,3,4,4]"], one.forward(&image));
    wrong!(d, "too few axes", ["BatchNorm2d", "[5,3]"], two.forward(&x));
    let heads = MultiHeadAttention::new(6, 2, &rng, d).expect("a layer");
    wrong!(d, "no sequence", ["MultiHeadAttention", "[n, length, 6]"], heads.forward(&x, None));
    let (lstm, gru) = (LstmCell::new(3, 4, &rng, d).expect("a cell"), GruCell::new(3, 4, &rng, d).expect("a cell"));
    wrong!(d, "state", ["LstmCell", "[n, 4]"], lstm.forward(&x, &zeros(&[5, 4]), &x).map(|(h, _)| h));
    wrong!(d, "rows", ["GruCell", "[n, 4]"], gru.forward(&x, &zeros(&[4, 4])));
    let drop = Dropout::new(-1.0, &rng);
    wrong!(d, "negative", ["dropout", "-1"], drop.forward(&x));
}

#[test]
fn dtypes() {
    let d = &own_device();
    let (f, i) = (vector(&[1.0, 2.0], d), Tensor::from_vec(vec![1i64, 2], [2], d).expect("integers"));
    let b = f.gt(1.0).expect("bools");
    wrong!(d, "two truth values", ["sub", "bool"], &b - &b);
    wrong!(d, "exp of integers", ["exp", "i64", "to_dtype"], i.exp());
    wrong!(d, "largest of bools", ["bool", "to_dtype"], b.max(()));
    wrong!(d, "a product of integers", ["matmul", "i64", "to_dtype"], i.reshape([1, 2]).expect("a row").matmul(&i));
    wrong!(d, "mean of integers", ["mean", "i64", "to_dtype"], i.mean(()));
    let bytes = i.to_dtype(DType::U8).expect("bytes");
    wrong!(d, "a number out of range", ["add", "u8", "256", "to_dtype"], &bytes + 256i64);
    wrong!(d, "float index", ["gather", "i64"], f.gather(0, &f));
    wrong!(d, "float mask", ["select", "bool"], f.select(&f, &f));
    wrong!(d, "reading as another dtype", ["i64", "f32"], f.to_vec::<i64>());
    wrong!(d, "a trainable integer", ["Var::new", "Var::state"], Var::new(&i));
    wrong!(d, "backward of integers", ["backward", "i64"], i.sum(()).expect("a sum").backward());
}

#[test]
fn devices() {
    let d = &own_device();
    let other = own_device();
    let (here, there) = (vector(&[1.0, 2.0], d), vector(&[1.0, 2.0], &other));
    wrong!(d, "two devices", ["to_device"], &here + &there);
    wrong!(d, "two devices", ["to_device"], Tensor::concat(&[&here, &there], 0));
    let (w, v) = (Var::new(&here).expect("a Var"), Var::new(&there).expect("a Var"));
    wrong!(d, "a write from another device", ["Var::set", "to_device"], w.set(&there));
    let both = || vec![w.clone(), v.clone()];
    wrong!(d, "parameters on two", ["Adam", "to_device"], Adam::new(both(), AdamConfig::default()));
    wrong!(d, "no parameters", ["Sgd", "at least one"], Sgd::new(vec![], SgdConfig::default()));
    let isa = CpuOptions { isa: Some("mmx".into()), ..CpuOptions::default() };
    let text = Device::cpu_with(&isa).expect_err("no such instruction set").to_string();
    assert!(text.contains("avx512") && text.contains("mmx"), "{text}");
}

#[test]
fn vars() {
    let d = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], d)).expect("a Var");
    wrong!(d, "another shape", ["Var::set", "[2]", "[3]"], w.set(&vector(&[1.0; 3], d)));
    wrong!(d, "another dtype", ["Var::set", "f32", "i64"], w.set(&Tensor::zeros([2], DType::I64, d).expect("zeros")));
    assert_eq!(values(&w.get()), [1.0, 2.0]);
}

#[test]
fn backward() {
    let d = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], d)).expect("a Var");
    let s = Var::state(&vector(&[1.0], d)).expect("a Var");
    let vector = || w.get().mul(2.0).expect("a vector");
    wrong!(d, "not a scalar", ["backward", "one element", "mean", "[2]"], vector().backward());
    wrong!(d, "no parameter", ["backward", "Var"], s.get().mul(2.0).expect("a number").backward());
    wrong!(d, "detached", ["backward", "Var"], w.get().detach().and_then(|t| t.sum(())).expect("a number").backward());
}

#[test]
fn gradients_on_request() {
    let d = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], d)).expect("a Var");
    let (x, long) = (vector(&[3.0, 4.0], d), vector(&[1.0; 3], d));
    let product = || (w.get() * &x).expect("a vector");
    let loss = || product().sum(()).expect("a number");
    wrong!(d, "several elements", ["grad", "one element", "upstream", "[2]"], product().grad(&[&w]));
    fn by(upstream: &Tensor) -> GradOptions<'_> {
        GradOptions::new().upstream(upstream)
    }
    wrong!(d, "another upstream", ["f32[2]", "f32[3]"], autograd::grad(&product(), &[&w], by(&long)));
    wrong!(d, "a constant", ["tensor 0", "require_grad", "constant"], loss().grad(&[&x]));
    wrong!(d, "no tape", ["require_grad"], x.sum(()).expect("a number").grad(&[&w]));
    let whole = || Tensor::zeros((), DType::I64, d).expect("zeros");
    wrong!(d, "integers", ["grad", "float", "i64"], whole().grad(&[&w]));
    wrong!(d, "integers tracked", ["require_grad", "float", "i64"], whole().require_grad());
    let there = own_device();
    let far = vector(&[1.0, 2.0], &there);
    wrong!(d, "another device", ["grad", "to_device"], autograd::grad(&product(), &[&w], by(&far)));
    let state = Var::state(&whole()).expect("a Var");
    wrong!(d, "integers trained", ["set_trainable", "floats", "i64"], state.set_trainable(true));
    let tracked = || (x.require_grad().expect("floats") * 2.0).and_then(|t| t.sum(())).expect("a number");
    wrong!(d, "backward without a Var", ["backward", "Var"], tracked().backward());
    wrong!(d, "another shape", ["from_pairs", "[2]", "[3]"], Gradients::from_pairs([(w.clone(), long.clone())]));
}

#[test]
fn custom_ops() {
    let d = &own_device();
    let (x, y) = (vector(&[1.0, 2.0], d), vector(&[3.0], d));
    let whole = Tensor::zeros([2], DType::I64, d).expect("zeros");
    let copy = |k: &mut jit::KernelArgs<'_>| {
        let x = k.inputs[0].as_slice::<f32>()?;
        k.output.as_mut_slice::<f32>()?.copy_from_slice(x);
        Ok(())
    };
    let new = |name: &str| jit::custom_op(name).cpu(copy);
    wrong!(d, "a name", ["custom_op", "letters", "two words"], new("two words").build());
    wrong!(d, "no name", ["custom_op", "letters"], new("").build());
    wrong!(d, "no inputs", ["custom_op", "at least one input"], new("a").inputs([]).build());
    wrong!(d, "scalars", ["custom_op", "at most 4", "5"], new("a").scalars([DType::F32; 5]).build());
    wrong!(d, "no kernel", ["custom_op", "kernel"], jit::custom_op("a").build());
    let plain = new("plain").build().expect("an op");
    wrong!(d, "no input", ["at least one operand"], plain.call(&[]));
    wrong!(d, "two inputs", ["plain", "1 tensors", "2 tensors"], plain.call(&[&x, &x]));
    wrong!(d, "integers", ["plain", "f32 as input 0", "i64"], plain.call(&[&whole]));
    wrong!(d, "a number", ["plain", "0 host numbers", "1"], plain.call_with(&[&x], &[1.0.into()]));
    let counts = new("counts").scalars([DType::I64]).build().expect("an op");
    wrong!(d, "no number", ["counts", "1 host numbers", "0"], counts.call(&[&x]));
    wrong!(d, "a fraction", ["counts", "i64", "0.5"], counts.call_with(&[&x], &[0.5.into()]));
    let same = |s: &[Shape]| if s[0] == s[1] { Ok(s[0]) } else { Shape::new(&[0; 9]) };
    let pair = new("pair").inputs([DType::F32; 2]).shape(same).build().expect("an op");
    wrong!(d, "shapes", ["axes"], pair.call(&[&x, &y]));
    let odd = new("odd").shape(|s| Ok(s[1])).build().expect("an op");
    wrong!(d, "a shape rule that panics", ["custom op odd", "shape rule", "panicked"], odd.call(&[&x]));
    let cuda = jit::custom_op("only_cuda").cuda("__global__ void only_cuda() {}").build().expect("an op");
    assert_eq!(cuda.cuda_source(), Some("__global__ void only_cuda() {}"));
    wrong!(d, "no kernel for the CPU", ["only_cuda", "cpu", "kernel"], cuda.call(&[&x]));
    let again = new("plain").build().expect("an op");
    assert_ne!(plain.name(), again.name(), "names are unique");
    // A kernel that asks for elements of another type: told when values are read.
    let wide = jit::custom_op("wide").cpu(|k| k.inputs[0].as_slice::<f64>().map(|_| ())).build().expect("an op");
    let told = |e: Error| assert!(e.to_string().contains("f64") && e.to_string().contains("f32"), "{e}");
    told(wide.call(&[&x]).and_then(|y| y.to_vec::<f32>()).map(|_| ()).expect_err("f64"));
}

/// Gradients with respect to values from outside the step: fine if nothing more can lie behind them, else refused.
#[test]
fn gradients_that_would_leave_the_step() {
    let d = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], d)).expect("a Var");
    let mut step = jit::Step::new();
    for _ in 0..5 {
        let h = (w.get() * 3.0).expect("a value with a tape");
        let by: [Result<Vec<Option<Tensor>>>; 4] = step
            .run(|| {
                let y = (&h * &h)?.sum(())?;
                Ok([
                    y.grad(&[&h]),
                    y.grad(&[&w]),
                    autograd::grad(&y, &[Wrt::from(&h), Wrt::from(&w)], GradOptions::new()),
                    autograd::grad(&y, &[&h, &w.get()], GradOptions::new()),
                ])
            })
            .expect("a call");
        let [first, rest @ ..] = by;
        assert_eq!(values(first.expect("by h alone")[0].as_ref().expect("a gradient")), [6.0, 12.0]);
        for r in rest {
            let text = r.expect_err("what lies behind h is not in the step").to_string();
            assert!(text.contains("outside the step") && text.contains("detach"), "{text}");
        }
    }
}

#[test]
fn backward_on_a_loss_of_a_finished_step() {
    let d = &own_device();
    let w = Var::new(&vector(&[1.0, 2.0], d)).expect("a Var");
    let mut step = jit::Step::new();
    let mut made = 0;
    let mut losses = Vec::new();
    for _ in 0..4 {
        let loss = step
            .run(|| {
                made = line!() + 1;
                w.get().sum(())
            })
            .expect("a loss");
        losses.push(loss);
    }
    // Values of recording and of replaying calls alike; eagerly and in another step.
    for loss in &losses {
        wrong!(d, "a finished step", ["backward", "step", "inside the closure"], loss.backward());
        let text = loss.backward().expect_err("its tape has ended").to_string();
        assert!(text.contains(&format!("{}:{made}", file!())), "says where the loss was made: {text}");
        assert_eq!(values(loss), [3.0], "the value is still there");
    }
}

#[test]
fn backward_reaching_a_value_made_outside_the_step() {
    let d = &own_device();
    let (w, b) = (Var::new(&vector(&[1.0, 2.0], d)).expect("a Var"), Var::new(&vector(&[3.0, 4.0], d)).expect("a Var"));
    let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| jit::Step::new());
    for k in 0..20 {
        let outside = (w.get() * 2.0).expect("a value with a tape");
        let snapshot = w.get();
        let line = line!() + 1;
        let both = first.run(|| (&outside * &b.get())?.sum(())?.backward().map(|_| ()));
        let e = both.expect_err("the gradient would stop at the step's edge");
        assert!(matches!(e.kind(), ErrorKind::Backward { .. }), "{e}");
        assert_eq!((e.loc().file(), e.loc().line()), (Some(file!()), Some(line)), "{e}");
        assert!(e.to_string().contains("inside the closure") && e.to_string().contains("detach"), "call {k}: {e}");
        // A loss made outside.
        let loss = outside.sum(()).expect("a loss");
        let e = second.run(|| loss.backward().map(|_| ())).expect_err("made outside");
        assert!(e.to_string().contains("inside the closure"), "call {k}: {e}");
        // A snapshot taken outside, of a `Var` that has changed since. (The step gives up tracing after some failures;
        // then only values computed outside are refused.)
        w.set(&(w.get() + 1.0).expect("a sum")).expect("a write");
        if k < 5 {
            let e = third.run(|| (&snapshot * &w.get())?.sum(())?.backward().map(|_| ())).expect_err("an old snapshot");
            assert!(e.to_string().contains("detach"), "call {k}: {e}");
        }
        // Detached, it is a constant: fine.
        let fixed = outside.detach().expect("detached");
        let g = fourth.run(|| (&fixed * &b.get())?.sum(())?.backward()).expect("gradients");
        assert_eq!(values(&g.get(&b).expect("a gradient")), values(&fixed));
    }
}

#[test]
fn indices_out_of_range_in_eager_code() {
    let d = &own_device();
    let table = Tensor::from_vec((0..6).map(|i| i as f32).collect::<Vec<_>>(), [3, 2], d).expect("a table");
    for bad in [3i64, -1, i64::MAX, i64::MIN] {
        let index = Tensor::from_vec(vec![0, bad], [2], d).expect("indices");
        let line = line!() + 1;
        let rows = table.index_select(0, &index).expect("clamped: told at the next host read");
        let e = rows.to_vec::<f32>().expect_err("an index out of range");
        assert!(matches!(e.kind(), ErrorKind::Index { len: 3, .. }), "{e}");
        assert_eq!((e.loc().file(), e.loc().line()), (Some(file!()), Some(line)), "{e}");
        assert!(e.to_string().contains("out of range"), "{e}");
        // Told once.
        assert_eq!(values(&table), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values(&rows).len(), 4);
    }
}

/// The error is for the thread whose index it was, whoever else reads from the device in between.
#[test]
fn indices_out_of_range_concern_their_thread() {
    let device = own_device();
    let index = Tensor::from_vec(vec![7i64], [1], &device).expect("an index");
    let read = vector(&[1.0, 2.0], &device).gather(0, &index).expect("a promise");
    let other = std::thread::scope(|s| s.spawn(|| values(&vector(&[3.0], &device))).join());
    assert_eq!(other.expect("no error there"), [3.0]);
    assert!(matches!(read.to_vec::<f32>().expect_err("here").kind(), ErrorKind::Index { len: 2, .. }));
    assert_eq!(values(&read), [2.0], "told once");
}

#[test]
fn indices_out_of_range_in_a_step() {
    let d = &own_device();
    let table = Var::new(&Tensor::from_vec((0..6).map(|i| i as f32).collect::<Vec<_>>(), [3, 2], d).expect("a table"));
    let (table, calls) = (table.expect("a Var"), Var::state(&vector(&[0.0], d)).expect("a Var"));
    for read_inside in [false, true] {
        let mut step = jit::Step::new();
        let mut good = values(&calls.get())[0];
        for k in 0..8 {
            let bad = k == 0 || k > 4;
            let index = Tensor::from_vec(vec![if bad { 7i64 } else { 2 }], [1], d).expect("indices");
            let mut line = 0;
            let result = step.run(|| {
                calls.set(&(calls.get() + 1.0)?)?;
                line = line!() + 1;
                let rows = table.get().index_select(0, &index)?;
                if read_inside {
                    // The error may surface here.
                    rows.to_vec::<f32>()?;
                }
                Ok(rows)
            });
            match result {
                Ok(rows) => {
                    assert!(!bad, "call {}", k + 1);
                    assert_eq!(values(&rows), [4.0, 5.0]);
                    good += 1.0;
                }
                Err(e) => {
                    assert!(bad && matches!(e.kind(), ErrorKind::Index { .. }), "call {}: {e}", k + 1);
                    assert_eq!((e.loc().file(), e.loc().line()), (Some(file!()), Some(line)), "{e}");
                }
            }
            assert_eq!(values(&calls.get()), [good], "call {}: its writes are dropped when it failed", k + 1);
        }
    }
}

#[test]
fn a_pending_value_on_another_thread() {
    let d = &own_device();
    let x = vector(&[1.0, 2.0], d);
    let mut step = jit::Step::new();
    for k in 0..4 {
        step.run(|| {
            let line = line!() + 1;
            let y = (&x * 2.0)?;
            let e = std::thread::scope(|s| s.spawn(|| y.exp().err()).join().expect("no panic")).expect("an error");
            assert!(matches!(e.kind(), ErrorKind::LeakedValue { .. }), "call {}: {e}", k + 1);
            let text = e.to_string();
            assert!(text.contains(&format!("{}:{line}", file!())) && text.contains("another thread"), "{text}");
            assert!(text.contains("after `Step::run` returns"), "says what to do: {text}");
            Ok(())
        })
        .expect("a call");
    }
}

#[test]
fn too_little_memory() {
    let d = Device::cpu_with(&CpuOptions { memory_limit: Some(1 << 20), ..CpuOptions::default() }).expect("a device");
    let line = line!() + 1;
    let e = Tensor::zeros([1 << 20], DType::F32, &d).expect_err("4 MiB of 1");
    let ErrorKind::OutOfMemory { need, limit, .. } = e.kind() else { panic!("{e}") };
    assert!(*need >= 4 << 20 && *limit == Some(1 << 20), "{e}");
    assert_eq!((e.loc().file(), e.loc().line()), (Some(file!()), Some(line)), "{e}");
    assert!(e.to_string().contains("free tensors or raise the limit"), "{e}");
    assert_eq!(values(&(vector(&[1.0], &d) + 1.0).expect("an eager op")), [2.0]);
}
