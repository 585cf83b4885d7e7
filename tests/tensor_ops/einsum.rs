//! Products of matrices, vectors and anything else by labels.

use super::*;
use std::collections::BTreeMap;
use stepgraph::DType;

/// By the definition: for every value of every label the product of the operands' elements, added to the result's. Letters
/// only.
fn naive(equation: &str, operands: &[&Tensor]) -> Vec<f64> {
    let (inputs, output) = equation.split_once("->").unwrap();
    let inputs: Vec<Vec<char>> = inputs.split(',').map(|s| s.trim().chars().collect()).collect();
    let output: Vec<char> = output.trim().chars().collect();
    let hosts: Vec<(Vec<f64>, Vec<usize>)> = operands.iter().map(|t| host(t)).collect();
    let mut lengths: BTreeMap<char, usize> = BTreeMap::new();
    for (labels, (_, dims)) in inputs.iter().zip(&hosts) {
        labels.iter().zip(dims).for_each(|(&l, &d)| {
            lengths.entry(l).and_modify(|n| *n = if *n == 1 { d } else { *n }).or_insert(d);
        });
    }
    let all: Vec<char> = lengths.keys().copied().collect();
    let dims: Vec<usize> = lengths.values().copied().collect();
    let shape: Vec<usize> = output.iter().map(|l| lengths[l]).collect();
    let mut out = vec![0.0; shape.iter().product()];
    for c in coordinates(&dims) {
        let value = |l: char| c[all.iter().position(|&a| a == l).unwrap()];
        let factor = |(labels, (values, dims)): (&Vec<char>, &(Vec<f64>, Vec<usize>))| {
            let place: Vec<usize> = labels.iter().zip(dims).map(|(&l, &d)| if d == 1 { 0 } else { value(l) }).collect();
            values[at(dims, &place)]
        };
        let to: Vec<usize> = output.iter().map(|&l| value(l)).collect();
        out[at(&shape, &to)] += inputs.iter().zip(&hosts).map(factor).product::<f64>();
    }
    out
}

#[test]
fn as_the_definition_says() {
    let cases: [(&str, &[&[usize]]); 28] = [
        ("ij,jk->ik", &[&[3, 4], &[4, 5]]),
        ("ij,kj->ik", &[&[3, 4], &[5, 4]]),
        ("ji,jk->ki", &[&[4, 3], &[4, 5]]),
        ("bij,bjk->bik", &[&[2, 3, 4], &[2, 4, 5]]),
        ("bij,jk->bik", &[&[2, 3, 4], &[4, 5]]),
        ("bhqd,bhkd->bhqk", &[&[2, 3, 4, 5], &[2, 3, 6, 5]]),
        ("bqhd,bkhd->bhqk", &[&[2, 4, 3, 5], &[2, 6, 3, 5]]),
        ("bhqk,bkhd->bqhd", &[&[2, 3, 4, 6], &[2, 6, 3, 5]]),
        ("i,i->", &[&[7], &[7]]),
        ("i,j->ij", &[&[3], &[4]]),
        ("i,j->ji", &[&[3], &[4]]),
        ("ij->ji", &[&[3, 4]]),
        ("ij->", &[&[3, 4]]),
        ("ij->j", &[&[3, 4]]),
        ("ii->i", &[&[4, 4]]),
        ("ii->", &[&[4, 4]]),
        ("iji->j", &[&[3, 2, 3]]),
        ("iii->i", &[&[3, 3, 3]]),
        ("bii->bi", &[&[2, 3, 3]]),
        ("ii,ij->j", &[&[3, 3], &[3, 4]]),
        ("ij,jk,kl->il", &[&[3, 4], &[4, 2], &[2, 5]]),
        ("a,b,c,d->abcd", &[&[2], &[3], &[2], &[3]]),
        ("ijk,ijl,ij->kl", &[&[2, 3, 4], &[2, 3, 5], &[2, 3]]),
        ("ij,ik->i", &[&[3, 4], &[3, 5]]),
        ("ij,ij->ij", &[&[3, 4], &[3, 4]]),
        ("ij,jk->ik", &[&[3, 1], &[4, 5]]),
        ("bij,bjk->bik", &[&[1, 3, 4], &[2, 4, 5]]),
        ("ijkl,lkjm->im", &[&[2, 3, 4, 5], &[5, 4, 3, 2]]),
    ];
    for (k, (equation, shapes)) in cases.into_iter().enumerate() {
        let operands: Vec<Tensor> = shapes.iter().enumerate().map(|(i, s)| filled(s, (3 * k + i) as u32)).collect();
        let operands: Vec<&Tensor> = operands.iter().collect();
        let got = numbers(|| Tensor::einsum(equation, &operands));
        close(&got, &naive(equation, &operands), 1e-5);
        // Integers, which have no matrix product.
        let whole: Vec<Tensor> = operands.iter().map(|t| t.mul(9.0).unwrap().to_dtype(DType::I64).unwrap()).collect();
        let whole: Vec<&Tensor> = whole.iter().collect();
        assert_eq!(numbers(|| Tensor::einsum(equation, &whole)), naive(equation, &whole), "{equation}");
    }
}

#[test]
fn implicit_results_and_ellipses() {
    let (a, b) = (filled(&[3, 4], 1), filled(&[4, 5], 2));
    let same = |equation: &str, explicit: &str, operands: &[&Tensor]| {
        let (x, y) = (Tensor::einsum(equation, operands).unwrap(), Tensor::einsum(explicit, operands).unwrap());
        harness::assert_bits_eq(equation, &x.to_host().unwrap(), &y.to_host().unwrap());
    };
    same("ij,jk", "ij,jk->ik", &[&a, &b]);
    same("ba", "ba->ab", &[&a]);
    same(" i j , j k -> i k ", "ij,jk->ik", &[&a, &b]);
    let (x, y) = (filled(&[2, 6, 3, 4], 3), filled(&[2, 6, 4, 5], 4));
    same("...ij,...jk->...ik", "abij,abjk->abik", &[&x, &y]);
    same("...ij,...jk", "abij,abjk->abik", &[&x, &y]);
    same("...ij,jk->...ik", "abij,jk->abik", &[&x, &b]);
    same("i...j->j...i", "iabj->jabi", &[&x]);
    same("...->...", "abij->abij", &[&x]);
    // Axes of an ellipsis broadcast, aligned at their end.
    let z = filled(&[6, 4, 5], 5);
    assert_eq!(Tensor::einsum("...ij,...jk->...ik", &[&x, &z]).unwrap().dims(), [2, 6, 3, 5]);
    let close_to = x.matmul(&z).unwrap();
    close(&host(&Tensor::einsum("...ij,...jk->...ik", &[&x, &z]).unwrap()).0, &host(&close_to).0, 1e-6);
    // Without it in the result they are summed.
    close(&host(&Tensor::einsum("...i->i", &[&x]).unwrap()).0, &host(&x.sum([0, 1, 2]).unwrap()).0, 1e-5);
}

#[test]
fn slopes_of_contractions() {
    // d sum(w * (a b)) / da = w b^T, with w = 1, 2, 3, ….
    let (a, b) = (filled(&[2, 3], 1), filled(&[3, 4], 2));
    let w = Tensor::arange(1.0, 9.0, &cpu()).unwrap().reshape([2, 4]).unwrap();
    close(&gradient(&a, |a| Tensor::einsum("ij,jk->ik", &[a, &b])), &naive("ik,jk->ij", &[&w, &b]), 1e-5);
    let square = filled(&[3, 3], 3);
    assert_eq!(gradient(&square, |s| Tensor::einsum("ii->i", &[s])), [1., 0., 0., 0., 2., 0., 0., 0., 3.]);
}

#[test]
fn mistakes_are_named() {
    let (a, b) = (filled(&[3, 4], 1), filled(&[5, 4], 2));
    let says = |equation: &str, operands: &[&Tensor], part: &str| {
        let m = message(Tensor::einsum(equation, operands));
        assert!(m.contains(part), "{m}");
    };
    says("ij,jk->ik", &[&a], "expected 2 operands, as `ij,jk->ik` has, got 1");
    says("ij,jk->ik", &[&a, &b], "axes of one length for label `j`, got 4 and 5");
    says("ijk->i", &[&a], "expected 3 axes of operand 0, as `ijk->i` says, got [3,4]");
    says("...ijk->i", &[&a], "at least 3 axes");
    says("ij->ik", &[&a], "labels of the result that operands have, got `k`");
    says("ij->ii", &[&a], "each label of the result once, got `i` twice");
    says("i1->i", &[&a], "letters, `...`, `,` and one `->`, got `1`");
    says("ij->i->j", &[&a], "got `-`");
    says("......ij->i", &[&a], "one `...`");
    says("ii->i", &[&a], "axes of one length for label `i`, got 3 and 4");
    says("ij,ij->ij", &[&a, &a.to_dtype(DType::I64).unwrap()], "f32 like operand 0, got i64");
    says("é->", &[&a], "letters");
}

#[test]
fn vectors_in_products() {
    let (m, v, w) = (filled(&[3, 4], 1), filled(&[4], 2), filled(&[3], 3));
    close(&numbers(|| m.matmul(&v)), &naive("ij,j->i", &[&m, &v]), 1e-6);
    close(&numbers(|| w.matmul(&m)), &naive("i,ij->j", &[&w, &m]), 1e-6);
    close(&numbers(|| v.matmul(&v)), &naive("j,j->", &[&v, &v]), 1e-6);
    assert_eq!(v.matmul(&v).unwrap().dims(), [0usize; 0]);
    let batch = filled(&[2, 5, 3, 4], 4);
    assert_eq!(batch.matmul(&v).unwrap().dims(), [2, 5, 3]);
    assert_eq!(w.matmul(&batch).unwrap().dims(), [2, 5, 4]);
    close(&numbers(|| w.matmul(&batch)), &naive("i,abij->abj", &[&w, &batch]), 1e-6);
    close(&gradient(&v, |v| m.matmul(v)), &naive("i,ij->j", &[&f32s(&[3], &[1., 2., 3.]), &m]), 1e-5);
    assert!(message(v.matmul(&w)).contains("matmul: expected 4 rows on the right"));
    assert!(message(f32s(&[], &[1.]).matmul(&w)).contains("matmul: expected vectors or matrices"));
}

/// Turned, backward and repeated operands of a product lie where they lie: no kernel copies them.
#[test]
fn products_read_views_in_place() {
    let (a, b) = (filled(&[6, 3, 4], 1), filled(&[6, 5, 4], 2));
    assert_eq!(kernels(|| a.matmul(&b.t()?)), 1, "transposed");
    let turned =
        || a.permute(&[1, 0, 2])?.matmul(&b.permute(&[2, 0, 1])?.permute(&[1, 0, 2])?.chunk(0, 2)?[1].flip(0)?);
    assert_eq!(kernels(turned), 1, "axes in any order, a part of them");
    assert_eq!(kernels(|| a.matmul(&b.i(0)?.t()?.expand([6, 4, 5])?)), 2, "a start that is a host number is copied");
    assert_eq!(kernels(|| a.matmul(&b.chunk(0, 6)?[0].transpose(1, 2)?.expand([6, 4, 5])?)), 1, "one matrix for all");
    assert_eq!(kernels(|| a.flip(1)?.matmul(&b.t()?.flip(())?)), 1, "backwards");
    let (q, k) = (filled(&[2, 7, 3, 5], 3), filled(&[2, 6, 3, 5], 4));
    assert_eq!(kernels(|| Tensor::einsum("bqhd,bkhd->bhqk", &[&q, &k])), 1, "heads between the rows");
    assert_eq!(kernels(|| Tensor::einsum("bhqk,bkhd->bqhd", &[&filled(&[2, 3, 7, 6], 5), &k])?.reshape([14, 15])), 2);
    for (x, y) in
        [(a.flip(()).unwrap(), b.t().unwrap().flip(()).unwrap()), (a.clone(), b.flip(2).unwrap().t().unwrap())]
    {
        close(&numbers(|| x.matmul(&y)), &naive("bij,bjk->bik", &[&x, &y]), 1e-6);
    }
}
