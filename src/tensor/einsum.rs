//! Einstein summation, composed of views, products and sums.
//!
//! Each operand first loses its repeated labels (a diagonal, which is a strided view) and is summed over the labels that
//! nobody else has. Then two operands at a time become one, the pair with the smallest result first: one batched matrix
//! product where there are labels to sum over, else an elementwise product.

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::tensor::Tensor;
use crate::tensor::recorder::here;

/// A label: a letter, or an axis that an ellipsis stands for, counted from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Label::Letter(c) => write!(f, "{c}"),
            Label::Ellipsis(_) => f.write_str("..."),
        }
    }
}

/// A tensor and the label of each of its axes.
#[derive(Clone)]
struct Term {
    tensor: Tensor,
    labels: Vec<Label>,
}

/// Letters of one operand or of the result; where the ellipsis stands.
struct Subscript {
    letters: Vec<char>,
    ellipsis: Option<usize>,
}

fn wrong(expected: impl Into<String>, given: impl Into<String>) -> Error {
    Error::argument("einsum", expected, given)
}

fn subscript(text: &str) -> Result<Subscript> {
    let mut out = Subscript { letters: Vec::new(), ellipsis: None };
    let mut rest = text.trim();
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if out.ellipsis.replace(out.letters.len()).is_some() {
                return Err(wrong("one `...` for each operand", format!("`{text}`")));
            }
            rest = after;
        } else if c.is_ascii_alphabetic() {
            out.letters.push(c);
            rest = &rest[1..];
        } else if c == ' ' {
            rest = &rest[1..];
        } else {
            return Err(wrong("letters, `...`, `,` and one `->`", format!("`{c}` in `{text}`")));
        }
    }
    Ok(out)
}

impl Subscript {
    /// The labels of axes, `extra` of them behind the ellipsis.
    fn labels(&self, extra: usize) -> Vec<Label> {
        let mut out: Vec<Label> = self.letters.iter().map(|&c| Label::Letter(c)).collect();
        if let Some(at) = self.ellipsis {
            out.splice(at..at, (0..extra).rev().map(Label::Ellipsis));
        }
        out
    }
}

/// Terms, the result's labels.
fn parse(equation: &str, operands: &[&Tensor]) -> Result<(Vec<Term>, Vec<Label>)> {
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(subscript(output)?)),
        None => (equation, None),
    };
    let inputs: Vec<Subscript> = inputs.split(',').map(subscript).collect::<Result<_>>()?;
    if inputs.len() != operands.len() {
        let want = format!("{} operands, as `{equation}` has", inputs.len());
        return Err(wrong(want, operands.len().to_string()));
    }
    let mut terms = Vec::new();
    let mut widest = 0;
    for (i, (s, t)) in inputs.iter().zip(operands).enumerate() {
        let extra = t.rank().checked_sub(s.letters.len()).filter(|&e| e == 0 || s.ellipsis.is_some());
        let Some(extra) = extra else {
            let at_least = if s.ellipsis.is_some() { "at least " } else { "" };
            let want = format!("{at_least}{} axes of operand {i}, as `{equation}` says", s.letters.len());
            return Err(Error::shape("einsum", want, t.shape().to_string()));
        };
        widest = widest.max(extra);
        terms.push(Term { tensor: (*t).clone(), labels: s.labels(extra) });
    }
    let output = match output {
        Some(s) => s.labels(widest),
        None => {
            // The ellipsis, then the labels that occur once, in alphabetical order.
            let all: Vec<Label> = terms.iter().flat_map(|t| t.labels.iter().copied()).collect();
            let once = |l: &Label| all.iter().filter(|o| *o == l).count() == 1;
            let mut letters: Vec<Label> =
                all.iter().copied().filter(|l| matches!(l, Label::Letter(_)) && once(l)).collect();
            letters.sort_unstable();
            (0..widest).rev().map(Label::Ellipsis).chain(letters).collect()
        }
    };
    for (i, l) in output.iter().enumerate() {
        if output[..i].contains(l) {
            return Err(wrong("each label of the result once", format!("`{l}` twice in `{equation}`")));
        }
        let known = terms.iter().any(|t| t.labels.contains(l));
        if !known && matches!(l, Label::Letter(_)) {
            return Err(wrong("labels of the result that operands have", format!("`{l}` in `{equation}`")));
        }
    }
    let output = output.into_iter().filter(|l| terms.iter().any(|t| t.labels.contains(l))).collect();
    Ok((terms, output))
}

/// The length of each label; axes of length 1 stretch.
fn lengths(terms: &[Term]) -> Result<Vec<(Label, usize)>> {
    let mut out: Vec<(Label, usize)> = Vec::new();
    for t in terms {
        for (l, &d) in t.labels.iter().zip(t.tensor.dims()) {
            match out.iter_mut().find(|(known, _)| known == l) {
                None => out.push((*l, d)),
                Some((_, len)) if *len == 1 => *len = d,
                Some((_, len)) if d != 1 && *len != d => {
                    let want = format!("axes of one length for label `{l}`");
                    return Err(Error::shape("einsum", want, format!("{len} and {d}")));
                }
                Some(_) => {}
            }
        }
    }
    Ok(out)
}

fn length(lengths: &[(Label, usize)], label: Label) -> usize {
    lengths.iter().find(|(l, _)| *l == label).map_or(1, |l| l.1)
}

impl Term {
    fn position(&self, label: Label) -> Option<usize> {
        self.labels.iter().position(|&l| l == label)
    }

    /// Repeated labels once: the diagonal of their axes.
    fn diagonals(mut self) -> Result<Term> {
        while let Some((first, second)) = (0..self.labels.len())
            .find_map(|i| (i + 1..self.labels.len()).find(|&j| self.labels[i] == self.labels[j]).map(|j| (i, j)))
        {
            let n = self.tensor.dims()[first];
            if self.tensor.dims()[second] != n {
                let want = format!("axes of one length for the repeated label `{}`", self.labels[first]);
                return Err(Error::shape("einsum", want, self.tensor.shape().to_string()));
            }
            // Both axes in one at the end; of it every (n + 1)-th element.
            let label = self.labels[first];
            let mut order: Vec<usize> = (0..self.labels.len()).filter(|&a| a != first && a != second).collect();
            self.labels = order.iter().map(|&a| self.labels[a]).collect();
            self.labels.push(label);
            order.extend([first, second]);
            let turned = self.tensor.permute(&order)?;
            let front = &turned.dims()[..order.len() - 2];
            let flat = turned.reshape([front, &[n * n]].concat())?;
            self.tensor = flat.part(front.len(), 0, n, n as isize + 1, here())?;
        }
        Ok(self)
    }

    /// Summed over the labels that are not wanted.
    fn summed(mut self, wanted: impl Fn(Label) -> bool) -> Result<Term> {
        let gone: Vec<isize> =
            (0..self.labels.len()).filter(|&a| !wanted(self.labels[a])).map(|a| a as isize).collect();
        if !gone.is_empty() {
            self.tensor = self.tensor.sum(&gone[..])?;
            self.labels.retain(|&l| wanted(l));
        }
        Ok(self)
    }

    /// Axes in the order of `labels`, those that are missing with length 1.
    fn aligned(&self, labels: &[Label]) -> Result<Tensor> {
        let order: Vec<usize> = labels.iter().filter_map(|&l| self.position(l)).collect();
        let turned = if order.is_sorted() { self.tensor.clone() } else { self.tensor.permute(&order)? };
        if order.len() == labels.len() {
            return Ok(turned);
        }
        let mut dims = turned.dims().iter();
        let dims: Vec<usize> =
            labels.iter().map(|&l| self.position(l).and_then(|_| dims.next()).copied().unwrap_or(1)).collect();
        turned.reshape(dims)
    }

    /// `[batch…, rows, columns]`, each of the last two made of the axes of several labels.
    fn matrix(&self, groups: [&[Label]; 3], lengths: &[(Label, usize)]) -> Result<Tensor> {
        let turned = self.aligned(&groups.concat())?;
        let full: Vec<usize> = groups.concat().iter().map(|&l| length(lengths, l)).collect();
        // Batch axes broadcast in the product; the others must be there in full to be merged.
        let batch = groups[0].len();
        let wide: Vec<usize> = turned.dims()[..batch].iter().chain(&full[batch..]).copied().collect();
        let turned = if turned.dims() == wide { turned } else { turned.expand(wide)? };
        let merged = |g: &[Label]| g.iter().map(|&l| length(lengths, l)).product::<usize>();
        let shape = [&turned.dims()[..batch], &[merged(groups[1]), merged(groups[2])]].concat();
        if turned.dims() == shape { Ok(turned) } else { turned.reshape(shape) }
    }
}

/// `a` and `b` multiplied, summed over the labels of both that are not wanted.
fn product(a: Term, b: Term, wanted: impl Fn(Label) -> bool, lengths: &[(Label, usize)]) -> Result<Term> {
    let common = |l: &Label| b.position(*l).is_some();
    let (shared, left): (Vec<Label>, Vec<Label>) = a.labels.iter().copied().partition(common);
    let (batch, sum): (Vec<Label>, Vec<Label>) = shared.into_iter().partition(|&l| wanted(l));
    let right: Vec<Label> = b.labels.iter().copied().filter(|&l| a.position(l).is_none()).collect();
    let labels = [&batch[..], &left, &right].concat();
    if sum.is_empty() || !a.tensor.dtype().is_float() {
        // Nothing to sum over, or integers, which have no matrix product.
        let all = [&labels[..], &sum].concat();
        let tensor = a.aligned(&all)?.mul(&b.aligned(&all)?)?;
        return Term { tensor, labels: all }.summed(wanted);
    }
    let (x, y) = (a.matrix([&batch, &left, &sum], lengths)?, b.matrix([&batch, &sum, &right], lengths)?);
    let tensor = x.matmul(&y)?;
    let dims: Vec<usize> = [
        &tensor.dims()[..batch.len()],
        &[&left[..], &right].concat().iter().map(|&l| length(lengths, l)).collect::<Vec<_>>(),
    ]
    .concat();
    Ok(Term { tensor: tensor.reshape(dims)?, labels })
}

/// The two terms whose product has the fewest elements; of equals the first.
fn cheapest(
    terms: &[Term],
    wanted: impl Fn(Label, usize, usize) -> bool,
    lengths: &[(Label, usize)],
) -> (usize, usize) {
    let mut best = (f64::INFINITY, (0, 1));
    for i in 0..terms.len() {
        for j in i + 1..terms.len() {
            let mut labels = terms[i].labels.clone();
            labels.extend(terms[j].labels.iter().filter(|&&l| terms[i].position(l).is_none()));
            let kept = labels.into_iter().filter(|&l| wanted(l, i, j));
            let size: f64 = kept.map(|l| length(lengths, l) as f64).product();
            if size < best.0 {
                best = (size, (i, j));
            }
        }
    }
    best.1
}

impl Tensor {
    /// Einstein summation: each letter of `equation` names an axis; operands are multiplied, and summed over the letters that
    /// the result lacks. `"ij,jk->ik"` is a matrix product, `"bij,bjk->bik"` a batched one, `"ii->i"` a diagonal, `"ij->ji"` a
    /// transpose, `"i,j->ij"` an outer product.
    ///
    /// Without `->` the result has the letters that occur once, in alphabetical order. `...` stands for any further axes, which
    /// broadcast; a letter's axes of length 1 stretch, too.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let d = Device::cpu();
    /// let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &d)?;
    /// let b = Tensor::from_vec(vec![1.0f32, 10.0], [2], &d)?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&a, &b])?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&a])?.item::<f32>()?, 5.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: an equation that does not parse or does not fit the operands' ranks; different lengths of one letter;
    /// different dtypes.
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        contract(equation, operands).map_err(|e| e.at(Loc::resolve(at)))
    }
}

fn contract(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let (terms, output) = parse(equation, operands)?;
    if let [first, rest @ ..] = operands
        && let Some(other) = rest.iter().find(|t| t.dtype() != first.dtype())
    {
        return Err(Error::dtype("einsum", format!("{} like operand 0", first.dtype()), other.dtype()));
    }
    let lengths = lengths(&terms)?;
    let mut terms: Vec<Term> = terms.into_iter().map(Term::diagonals).collect::<Result<_>>()?;
    // Labels of one operand alone are summed at once.
    for i in 0..terms.len() {
        let elsewhere: Vec<Label> =
            (0..terms.len()).filter(|&k| k != i).flat_map(|k| terms[k].labels.clone()).collect();
        terms[i] = terms[i].clone().summed(|l| output.contains(&l) || elsewhere.contains(&l))?;
    }
    while terms.len() > 1 {
        let wanted = |terms: &[Term], l: Label, i: usize, j: usize| {
            output.contains(&l) || terms.iter().enumerate().any(|(k, t)| k != i && k != j && t.labels.contains(&l))
        };
        let (i, j) = cheapest(&terms, |l, i, j| wanted(&terms, l, i, j), &lengths);
        let kept: Vec<Label> = lengths.iter().map(|l| l.0).filter(|&l| wanted(&terms, l, i, j)).collect();
        let b = terms.remove(j);
        let a = terms.remove(i);
        terms.insert(i, product(a, b, |l| kept.contains(&l), &lengths)?);
    }
    let Some(last) = terms.pop() else { return Err(wrong("at least one operand", "none")) };
    // Axes of length 1 that no other operand stretched stay as they are.
    let result = last.aligned(&output)?;
    let dims: Vec<usize> = output.iter().map(|&l| length(&lengths, l)).collect();
    if result.dims() == dims { Ok(result) } else { result.expand(dims) }
}
