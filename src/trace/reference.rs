//! The reference leg: a launch computed again by the interpreter ([`crate::interp`]), for steps that verify.

use crate::backend::{Buffer, InputBinding};
use crate::base::host::HostData;
use crate::base::{Error, HostValue, Layout, Result, Shape, Type};
use crate::interp::{self, Precision};
use crate::ir::Graph;
use crate::op;
use crate::tensor::{Device, Ready};

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;

/// A segment's graph, as traced: before any pass.
pub(crate) struct Reference {
    pub graph: Graph,
    pub device: Device,
}

impl Reference {
    /// What the launch must give. Called before it, since it may overwrite its inputs.
    pub fn evaluate(&self, inputs: &[InputBinding<'_>], params: &[u64]) -> Result<Vec<HostValue>> {
        let graph = &self.graph;
        let values =
            inputs.iter().zip(graph.inputs()).map(|(b, id)| self.read(b.buffer, b.layout, graph.node(id.node).ty));
        interp::run(graph, &values.collect::<Result<Vec<_>>>()?, params, Precision::Exact)
    }

    /// Compares output `k`, as the launch left it.
    pub fn compare(&self, k: usize, expected: &HostValue, given: &Ready) -> Result<()> {
        let node = self.graph.node(self.graph.outputs()[k]);
        let given = self.read(&given.buffer, &given.layout, node.ty)?;
        if same(expected, &given, node.ty) {
            return Ok(());
        }
        let text = |v: &HostValue| {
            let text = format!("{:?}", v.data);
            if text.len() > 300 { format!("{}…", text.chars().take(300).collect::<String>()) } else { text }
        };
        let detail = format!(
            "output {k} ({}) of a launch differs from the reference: {} instead of {}",
            node.ty,
            text(&given),
            text(expected)
        );
        Err(Error::bug("verify", detail).at(node.loc))
    }

    /// The elements of a view on the host, without an op of the device.
    fn read(&self, buffer: &Buffer, layout: &Layout, ty: Type) -> Result<HostValue> {
        let Some((lo, hi)) = layout.span() else {
            return Ok(HostValue::new(ty.shape, HostData::from_bytes(ty.dtype, &[])));
        };
        let (len, size) = ((hi - lo + 1) as usize, ty.dtype.size());
        let mut bytes = vec![0u8; len * size];
        self.device.backend().download(buffer, lo.max(0) as usize * size, &mut bytes)?;
        let all = HostValue::new(Shape::new(&[len])?, HostData::from_bytes(ty.dtype, &bytes));
        Ok(op::host::view(&all, &Layout { offset: layout.offset - lo, ..*layout }))
    }
}

/// Whether the bits are the same; NaNs are all alike.
pub(crate) fn same(a: &HostValue, b: &HostValue, ty: Type) -> bool {
    let (x, y) = (a.data.to_bytes(), b.data.to_bytes());
    if x == y || a.shape != b.shape || !ty.dtype.is_float() {
        return x == y && a.shape == b.shape;
    }
    let size = ty.dtype.size();
    let words = x.chunks(size).zip(y.chunks(size));
    let numbers = a.data.to_f64().into_iter().zip(b.data.to_f64());
    x.len() == y.len() && words.zip(numbers).all(|((x, y), (p, q))| x == y || (p.is_nan() && q.is_nan()))
}
