//! The plan's text form.

use super::*;
use crate::plan::check::check;

const STEP: &str = "\
plan @step arena 64 params($0: i64, $1: f32) {
  input 0: f32[4,3] var, 48 bytes
  input 1: f32[3,5] strided [1,3] offset 2, 68 bytes
  input 2: i64[7], 56 bytes
  output 0: f32[4,5], 80 bytes
  output 1: f32[4,3], 48 bytes, may overwrite input 0
  output 2: f32[5] offset 5, view of output 0
  output 3: f32[3] strided [3] offset 1, view of input 1
  output 4: f32[5], 20 bytes
  output 5: i64[2,5], 80 bytes
  output 6: f32[4,3], 48 bytes
  output 7: i64[4,3], 96 bytes
  slot %0: input 0, 48 bytes
  slot %1: input 1, 68 bytes
  slot %2: output 0, 80 bytes
  slot %3: arena 0, 28 bytes
  slot %4: output 1, 48 bytes
  slot %5: input 2, 56 bytes
  slot %6: output 4, 20 bytes
  slot %7: output 5, 80 bytes
  slot %8: output 6, 48 bytes
  slot %9: output 7, 96 bytes
  step 0 \"matmul\" (%0, %1, %2)
    matmul f32 4 x 3 x 5, a [3,1], b [1,3] + 2, c [5,1]
  step 1 \"slice·mul\" (%0, %3) params($0, $1)
    kernel @k(%0: f32[12], out %1: f32[7], $0: i64, $1: f32) domain [7] {
      v0: f32 = load %0[1] + $0 * 1 (max 5)
      v1: f32 = param $1
      v2: f32 = mul v0, v1
      store %1[1], v2
    }
  step 2 \"neg\" (%0, %4) after 0, 1
    kernel @k(%0: f32[12], out %1: f32[12]) domain [12] {
      v0: f32 = load %0[1]
      v1: f32 = neg v0
      store %1[1], v1
    }
  step 3 \"scatter_add\" (%5, %3, %6) after 1
    scatter_add f32 outer 1 count 7 len 5 inner 1, index [0,1,0], src [0,1,0]
  step 4 \"scatter_index\" (%5, %7)
    scatter_index [2,3,1] len 5, [3,-1,1] + 2
  step 5 \"recurrence\" (%1, %1, %8)
    scan recurrence f32 [1,4,3] reverse, [12,3,1], [0,3,1]
  step 6 \"argsort\" (%1, %9)
    argsort f32 [4,3,1] descending, [3,1,1]
}
";

#[test]
fn every_part_of_the_grammar() {
    let plan = parse(STEP).unwrap();
    assert_eq!(plan.to_string(), STEP);
    assert_eq!(plan.edges, [(0, 2), (1, 2), (1, 3)]);
    assert_eq!(plan.inputs[1].layout.strides(), [1, 3]);
    assert_eq!(plan.outputs[1].in_place, Some(0));
    assert_eq!(plan.outputs[3].storage, OutputStorage::Input(1));
    let StepKind::Library(Library::Matmul(m)) = &plan.steps[0].kind else { panic!("not a matmul") };
    assert_eq!((m.m, m.k, m.n, m.b.offset, m.b.row, m.b.col), (4, 3, 5, 2, 1, 3));
    // It is a right plan too.
    check(plan).unwrap();
}

#[test]
fn batches_places_and_labels() {
    let text = STEP.replace(
        "matmul f32 4 x 3 x 5, a [3,1], b [1,3] + 2, c [5,1]",
        "matmul f32 batch [2,1] 4 x 3 x 5, a [12,0,3,1], b [0,0,1,3] + 2, c [20,20,5,1]",
    );
    let mut plan = parse(&text).unwrap();
    assert_eq!(plan.to_string(), text);
    // Places are comments; quotes in a label do not break the text.
    plan.steps[0].locs = vec![crate::base::Loc::caller()];
    plan.steps[0].label = "a \"b\"".into();
    let printed = plan.to_string();
    assert!(printed.contains("; src/plan/text_tests.rs:"), "{printed}");
    assert_eq!(parse(&printed).unwrap().steps[0].label, "a 'b'");
}

#[test]
fn errors_say_what_and_where() {
    let change = |from: &str, to: &str| {
        assert!(STEP.contains(from));
        parse(&STEP.replace(from, to)).expect_err(to).to_string()
    };
    assert!(change("input 1:", "input 2:").contains("line 3: position 2 where 1 is next"));
    assert!(change("slot %3", "slot %9").contains("line 16: position 9 where 3 is next"));
    assert!(change("slot %3: arena", "slot %3: heap").contains("line 16: expected `arena`, `input` or `output`"));
    assert!(
        change("matmul f32 4", "gemm f32 4").contains("line 24: expected `kernel` or a library call, such as `matmul`")
    );
    assert!(change("a [3,1]", "a [3]").contains("line 24: a matrix has at least"));
    assert!(change("index [0,1,0]", "index [0,1]").contains("three strides are needed"));
    assert!(change("after 1", "after x").contains("expected a step"));
    assert!(change("mul v0, v1", "mul v0, v3").contains("operand 3 is not made before"));
    assert!(change("  step 0", "  stop 0").contains("line 23: expected `input`, `output`, `slot`, `step` or `}`"));
    assert!(parse(&format!("{STEP} x")).is_err());
    for at in (0..STEP.len()).filter(|&at| STEP.is_char_boundary(at) && at < STEP.len() - 2) {
        assert!(parse(&STEP[..at]).is_err());
    }
}

/// A user's kernel is named; its scalars are parameters of the step or fixed. The checker counts both.
#[test]
fn custom_kernels() {
    // Registers the sample.
    crate::op::samples::samples();
    let text = "\
plan @custom arena 0 params($0: f32, $1: i64) {
  input 0: i64[6], 48 bytes
  input 1: bool[4], 4 bytes
  output 0: i64[4], 32 bytes
  slot %0: input 0, 48 bytes
  slot %1: input 1, 4 bytes
  slot %2: output 0, 32 bytes
  step 0 \"sample_mix\" (%0, %1, %2) params($1)
    custom sample_mix(i64[2,2] + 2, bool[2,2]) -> i64[2,2] scalars [i64 $0]
}
";
    let plan = parse(text).unwrap();
    assert_eq!(plan.to_string(), text);
    check(plan).unwrap();
    let fixed = text.replace("i64 $0]", "i64 #7]").replace(" params($1)", "");
    let plan = parse(&fixed).unwrap();
    assert_eq!(plan.to_string(), fixed);
    check(plan).unwrap();
    for (from, to, says) in [
        ("params($1)", "params($0)", "parameters"),
        (" params($1)", "", "0 parameters for 1"),
        ("i64[2,2] + 2", "i64[2,2] + 3", "bytes"),
        ("-> i64[2,2]", "-> i64[5]", "bytes"),
        ("(%0, %1, %2)", "(%0, %2)", "argument"),
    ] {
        let wrong = text.replace(from, to);
        assert_ne!(wrong, text);
        let e = check(parse(&wrong).unwrap()).unwrap_err().to_string();
        assert!(e.contains(says), "{from} -> {to}: {e}");
    }
    let e = parse(&text.replace("custom sample_mix", "custom nothing")).unwrap_err();
    assert!(e.to_string().contains("no custom op called `nothing`"), "{e}");
}
