//! Kernels without reductions: one thread a point.

use crate::backend::cuda::render::body::Body;
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::text::Source;
use crate::base::Result;

const THREADS: u32 = 256;

/// A kernel whose stores are all of points.
pub fn pointwise(form: &mut Form, body: &mut Body) -> Result<()> {
    let points: usize = body.kernel.domain.iter().product();
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, false);
    form.each(&mut out, body, "i", points, THREADS);
    let axes: Vec<usize> = (0..body.kernel.domain.len()).collect();
    body.locate(&mut out, &axes, "i");
    let mut roots = body.row_roots.clone();
    body.passes.iter().for_each(|p| roots.extend(&p.roots));
    body.emit(&mut out, &roots, false)?;
    out.close();
    out.close();
    form.stage(out, name, points.div_ceil(THREADS as usize), THREADS);
    Ok(())
}
