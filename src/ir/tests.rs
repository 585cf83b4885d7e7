//! The graph's text form, verifier and rewriter.

use proptest::prelude::*;

use super::rewrite::Rewriter;
use super::{Graph, InputKind, NodeId, NodeOp, parse::parse};
use crate::base::scalar::Origin;
use crate::base::{DType, Layout, Loc, Scalar, Shape, Type};
use crate::op::elementwise::{Elementwise, row};
use crate::op::{Op, ReduceKind, samples};

fn f32s(dims: &[usize]) -> Type {
    Type::new(DType::F32, Shape::new(dims).unwrap())
}

fn external(g: &mut Graph, ty: Type) -> NodeId {
    g.input(ty, InputKind::External, Layout::contiguous(ty.shape), Loc::NONE)
}

fn elementwise(name: &str) -> Op {
    Op::Elementwise(Elementwise::new(row(name).unwrap()))
}

/// `mul` with a scalar as its second operand.
fn scale(s: Scalar) -> Op {
    Op::Elementwise(Elementwise { row: row("mul").unwrap(), scalar: Some((1, s)) })
}

fn param(dtype: DType, k: u32) -> Scalar {
    Scalar { bits: 0, dtype, origin: Origin::Param(k) }
}

/// w (a `Var`) times the matrix x, scaled by the parameter, overwrites w.
fn small() -> Graph {
    let mut g = Graph::new("step");
    let w = g.input(
        f32s(&[4, 4]),
        InputKind::Var { written_by: Some(1) },
        Layout::contiguous(f32s(&[4, 4]).shape),
        Loc::NONE,
    );
    let x = g.input(
        f32s(&[4, 4]),
        InputKind::External,
        Layout::contiguous(f32s(&[5, 4]).shape).slice(0, 1, 4, 1).permute(&[1, 0]),
        Loc::NONE,
    );
    let lr = g.param(DType::F32);
    let y = g.op(Op::Matmul, &[w, x], Loc::NONE).unwrap();
    let z = g.op(scale(param(DType::F32, lr)), &[y], Loc::NONE).unwrap();
    let s = g.op(Op::Reduce { kind: ReduceKind::Sum, axes: 3, keepdim: false }, &[z], Loc::NONE).unwrap();
    g.output(s);
    g.output(z);
    g
}

#[test]
fn text_of_a_small_graph() {
    let text = "\
graph @step(%x0: f32[4,4] var -> out 1, %x1: f32[4,4] strided [1,4] offset 4) params($0: f32) {
  %0: f32[4,4] = matmul %x0, %x1
  %1: f32[4,4] = mul(scalar1=$0) %0
  %2: f32[] = sum(axes=[0,1]) %1
  return %2, %1
}
";
    assert_eq!(small().to_string(), text);
    let read = parse(text).unwrap();
    assert_eq!(read.to_string(), text);
    assert_eq!(read.inputs()[0].kind, InputKind::Var { written_by: Some(1) });
    assert_eq!(read.inputs()[1].layout.strides(), [1, 4]);
    assert_eq!(read.inputs()[1].layout.offset, 4);
    assert_eq!(read.params(), [DType::F32]);
}

#[test]
fn what_is_read_but_not_printed() {
    // Any names, no types, a device, comments, line ends.
    let g = parse(
        "graph @g(%x: f32[2], ; the input\n %y : f32[2],) on cuda:0 {\n\
         %a = add %x,\n %y %b: f32[3]=full(shape=[3], value=1.0:f32) %c = neg %a return %c, %b }",
    )
    .unwrap();
    assert_eq!(
        g.to_string(),
        "graph @g(%x0: f32[2], %x1: f32[2]) {\n  %0: f32[2] = add %x0, %x1\n  \
         %1: f32[3] = full(shape=[3], value=1.0:f32)\n  %2: f32[2] = neg %0\n  return %2, %1\n}\n"
    );
    assert_eq!(parse("graph @empty() {}").unwrap().len(), 0);
}

#[test]
fn places_are_comments() {
    let mut g = Graph::new("g");
    let x = external(&mut g, f32s(&[2]));
    let here = Loc::caller();
    let a = g.op(elementwise("neg"), &[x], here).unwrap();
    let b = g.op(elementwise("neg"), &[a], here.gradient()).unwrap();
    g.output(b);
    let text = g.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("  %0: f32[2] = neg %x0 ") && lines[1].ends_with(&format!("; {here}")), "{text}");
    assert!(lines[2].ends_with(&format!("; gradient of {here}")), "{text}");
    parse(&text).unwrap();
}

#[test]
fn errors_carry_the_line() {
    let body =
        |line: &str| format!("graph @g(%x: f32[2], %y: f32[3]) params($0: i64) {{\n  %a = neg %x\n  {line}\n}}\n");
    for (line, want) in [
        ("%b = add %x, %y", "add: expected shapes that broadcast"),
        ("%b: f32[3] = neg %x", "%b is declared as f32[3], but it is f32[2]"),
        ("%a = neg %x", "%a is defined twice"),
        ("%b = neg %c", "%c is not defined above"),
        ("%b = nag %x", "nag"),
        ("%b = neg %x, ", "expected `%`, got `}`"),
        ("%b = sum(axes=[0] %x", "is not closed"),
        ("%b: f99[2] = neg %x", "expected a dtype"),
        ("return %z", "%z is not defined above"),
        ("return", "expected `%`"),
    ] {
        let message = parse(&body(line)).expect_err(line).to_string();
        assert!(message.contains(want), "{line}: {message}");
        // `%b = neg %x,` goes on in line 4.
        let at = if line.ends_with(", ") || line == "return" { 4 } else { 3 };
        assert!(message.starts_with(&format!("parse error in line {at}: ")), "{line}: {message}");
    }
    // What is only seen when the graph is whole.
    let missing = parse(&body("%b = mul(scalar1=$1) %x")).unwrap_err().to_string();
    assert!(missing.contains("there is no $1"), "{missing}");
    let dtype = parse(&body("%b = mul(scalar1=$0) %x")).unwrap_err().to_string();
    assert!(dtype.contains("takes $0 as f32, but $0 is i64"), "{dtype}");
    let header = parse("graph @g(%x: f32[2] strided [1,1]) {}").unwrap_err().to_string();
    assert!(header.contains("2 strides for the shape [2]"), "{header}");
    assert!(parse("graph @g() {} graph").unwrap_err().to_string().contains("expected the end, got `graph`"));
    assert!(parse("").is_err());
}

#[test]
fn verifier_accepts_what_is_right() {
    small().verify().unwrap();
    Graph::new("empty").verify().unwrap();
}

#[track_caller]
fn refused(spoil: impl FnOnce(&mut Graph)) -> String {
    let mut g = small();
    spoil(&mut g);
    g.verify().expect_err("a spoiled graph was accepted").to_string()
}

#[test]
fn verifier_finds_what_is_wrong() {
    let found = refused(|g| g.node_mut(NodeId(2)).ty = f32s(&[4, 5]));
    assert!(found.contains("%0: its type is f32[4,5], but its operands make it f32[4,4]"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(2)).operands[0] = NodeId(4));
    assert!(found.contains("its operand 4 does not precede it"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(2)).operands[0] = NodeId(99));
    assert!(found.contains("its operand 99 does not precede it"), "{found}");
    let found = refused(|g| _ = g.node_mut(NodeId(2)).operands.pop());
    assert!(found.contains("matmul"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(0)).op = NodeOp::Input(1));
    assert!(found.contains("it is not what the graph has as input 1"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(3)).op = NodeOp::Op(scale(Scalar::f32(2.0))));
    assert!(found.contains("the scalar 2.0:f32 is a bare host value"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(3)).op = NodeOp::Op(scale(param(DType::F32, 1))));
    assert!(found.contains("there is no $1; the graph has 1 params"), "{found}");
    let found = refused(|g| g.node_mut(NodeId(3)).op = NodeOp::Op(scale(param(DType::I64, 0))));
    assert!(found.contains("it takes $0 as i64, but $0 is f32"), "{found}");
    let found = refused(|g| g.output(NodeId(77)));
    assert!(found.contains("output 77 is not a node"), "{found}");
    let var = |o| InputKind::Var { written_by: Some(o) };
    let found = refused(|g| g.set_input_kind(0, var(2)).unwrap());
    assert!(found.contains("written by output 2, which does not exist"), "{found}");
    let found = refused(|g| g.set_input_kind(0, var(0)).unwrap());
    assert!(found.contains("input 0 is f32[4,4], but output 0, which writes it, is f32[]"), "{found}");
    let found = refused(|g| g.set_input_kind(1, var(1)).unwrap());
    assert!(found.contains("output 1 writes two inputs"), "{found}");
    // An operand changed behind the edges' back.
    let found = refused(|g| g.node_mut(NodeId(2)).operands.push(NodeId(1)));
    assert!(found.contains("matmul"), "{found}");
}

#[test]
fn verifier_shows_the_neighbourhood_and_the_place() {
    let mut g = small();
    let here = Loc::caller();
    g.node_mut(NodeId(3)).ty = f32s(&[1]);
    g.node_mut(NodeId(3)).loc = here;
    let found = g.verify().unwrap_err();
    assert_eq!(found.loc(), here);
    let text = found.to_string();
    for line in ["\n  %0: f32[4,4] = matmul %x0, %x1", "\n> %1: f32[1] = mul(scalar1=$0) %0", "\n  %2: f32[] = sum"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn rewriting() {
    let g = small();
    // Copying everything changes nothing.
    let mut r = Rewriter::new(&g);
    for id in g.ids() {
        r.copy(id).unwrap();
    }
    assert_eq!(r.finish().unwrap().to_string(), g.to_string());
    // x + x instead of the product; what only the product used goes.
    let mut r = Rewriter::new(&g);
    let x = r.mapped(NodeId(1)).unwrap();
    let sum = r.op(elementwise("add"), &[x, x], Loc::NONE).unwrap();
    r.replace(NodeId(2), sum).unwrap();
    r.copy(NodeId(3)).unwrap();
    r.copy(NodeId(4)).unwrap();
    let new = r.finish().unwrap();
    new.verify().unwrap();
    assert!(new.to_string().contains("  %0: f32[4,4] = add %x1, %x1\n  %1: f32[4,4] = mul(scalar1=$0) %0\n"), "{new}");
    // Errors, not wrong graphs.
    let mut r = Rewriter::new(&g);
    assert!(r.copy(NodeId(3)).unwrap_err().to_string().contains("node 2 was dropped but is used"));
    r.copy(NodeId(2)).unwrap();
    r.copy(NodeId(3)).unwrap();
    let scalar = r.copy(NodeId(4)).unwrap();
    assert!(
        r.replace(NodeId(3), scalar)
            .unwrap_err()
            .to_string()
            .contains("of type f32[4,4] replaced by one of type f32[]")
    );
    assert!(Rewriter::new(&g).finish().is_err());
}

#[test]
fn graphviz() {
    let dot = small().dot();
    assert!(dot.starts_with("digraph \"step\" {") && dot.ends_with("}\n"));
    assert!(dot.contains("n0 -> n2 [label=\"0\"]") && dot.contains("n1 -> n2 [label=\"1\"]"), "{dot}");
    assert!(dot.contains("label=\"%2 sum(axes=[0,1])\\nf32[]\"") && dot.contains("n4 -> out0"), "{dot}");
}

/// A graph from choices: each picks a sample of some op, and for each operand an earlier value of its type,
/// or a new input.
fn random_graph(choices: &[(u16, u16)]) -> Graph {
    let all = samples::samples();
    let mut g = Graph::new("random");
    for &(which, from) in choices {
        let sample = &all[which as usize % all.len()];
        let operands: Vec<NodeId> = sample
            .operands
            .iter()
            .enumerate()
            .map(|(k, o)| {
                let fits: Vec<NodeId> = g.ids().filter(|&id| g.node(id).ty == o.ty).collect();
                if !fits.is_empty() && from % 3 != 0 {
                    return fits[(from as usize + k) % fits.len()];
                }
                let kind = if from % 2 == 0 { InputKind::External } else { InputKind::Var { written_by: None } };
                let mut layout = Layout::contiguous(o.ty.shape);
                layout.offset = from as isize % 5;
                if from % 7 == 0 && o.ty.shape.rank() > 0 {
                    layout.strides[0] = -layout.strides[0] * 2;
                }
                g.input(o.ty, kind, layout, Loc::NONE)
            })
            .collect();
        let scalars: Vec<Scalar> = sample
            .op
            .rules()
            .scalars()
            .iter()
            .map(|s| match from % 2 {
                0 => s.constant(),
                _ => param(s.dtype, g.param(s.dtype)),
            })
            .collect();
        let op = if scalars.is_empty() { sample.op } else { sample.op.rules().with_scalars(&scalars) };
        // A constant slice start may not fit a reused shape; a parameter's bits here are 0, which does.
        if let Ok(id) = g.op(op, &operands, Loc::NONE) {
            if from % 4 == 0 {
                g.output(id);
            }
            if let InputKind::Var { .. } = g.inputs().first().map_or(InputKind::External, |i| i.kind)
                && g.node(id).ty == g.node(g.inputs()[0].node).ty
                && g.outputs().last() == Some(&id)
            {
                let o = g.outputs().len() as u32 - 1;
                g.set_input_kind(0, InputKind::Var { written_by: Some(o) }).unwrap();
            }
        }
    }
    g
}

/// What the text form keeps: all but places, values of parameters, and where inputs stand among the nodes.
fn assert_same(a: &Graph, b: &Graph) {
    let order = |g: &Graph| {
        let ops = g.ids().filter(|&id| matches!(g.node(id).op, NodeOp::Op(_))).collect::<Vec<_>>();
        let inputs: Vec<NodeId> = g.inputs().iter().map(|i| i.node).collect();
        [inputs, ops].concat()
    };
    let (of_a, of_b) = (order(a), order(b));
    assert_eq!(of_a.len(), of_b.len());
    let same = |x: NodeId, y: NodeId| of_a.iter().position(|&i| i == x) == of_b.iter().position(|&i| i == y);
    for (&x, &y) in of_a.iter().zip(&of_b) {
        let (x, y) = (a.node(x), b.node(y));
        assert_eq!(x.ty, y.ty);
        assert!(x.operands.len() == y.operands.len() && x.operands.iter().zip(&y.operands).all(|(&o, &p)| same(o, p)));
        match (&x.op, &y.op) {
            (NodeOp::Op(p), NodeOp::Op(q)) => {
                let plain = |op: &Op| {
                    let scalars: Vec<Scalar> = op
                        .rules()
                        .scalars()
                        .iter()
                        .map(|s| if let Origin::Param(_) = s.origin { Scalar { bits: 0, ..*s } } else { *s })
                        .collect();
                    op.rules().with_scalars(&scalars)
                };
                assert_eq!(plain(p), plain(q));
            }
            (p, q) => assert_eq!(p, q),
        }
    }
    for (x, y) in a.inputs().iter().zip(b.inputs()) {
        assert_eq!((x.kind, x.layout), (y.kind, y.layout));
    }
    assert_eq!(a.params(), b.params());
    assert!(a.outputs().len() == b.outputs().len() && a.outputs().iter().zip(b.outputs()).all(|(&x, &y)| same(x, y)));
}

proptest! {
    #[test]
    fn print_then_parse_is_the_same_graph(choices in prop::collection::vec(any::<(u16, u16)>(), 0..40)) {
        let g = random_graph(&choices);
        g.verify().unwrap();
        let text = g.to_string();
        let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(read.to_string(), text);
        assert_same(&g, &read);
    }

    #[test]
    fn no_text_makes_the_parser_panic(
        choices in prop::collection::vec(any::<(u16, u16)>(), 0..6), at in any::<prop::sample::Index>(), with in "[ -~\n]{0,4}",
    ) {
        let text = random_graph(&choices).to_string();
        let at = at.index(text.len());
        let cut = (at + with.len()).min(text.len());
        // Replaced, inserted and truncated.
        _ = parse(&format!("{}{with}{}", &text[..at], &text[cut..]));
        _ = parse(&format!("{}{with}{}", &text[..at], &text[at..]));
        _ = parse(&text[..at]);
    }
}
