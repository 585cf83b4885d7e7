//! Kernels without reductions: one thread a point, or a few neighbouring points.

use crate::backend::cuda::render::body::Body;
use crate::backend::cuda::render::form::Form;
use crate::backend::cuda::render::pack::Packs;
use crate::backend::cuda::render::text::Source;
use crate::base::Result;

const THREADS: u32 = 256;

/// A kernel whose stores are all of points.
pub fn pointwise(form: &mut Form, body: &mut Body) -> Result<()> {
    let domain = &body.kernel.domain;
    let points: usize = domain.iter().product();
    let mut roots = body.row_roots.clone();
    body.passes.iter().for_each(|p| roots.extend(&p.roots));
    let axes: Vec<usize> = (0..domain.len()).collect();
    if let Some(&last) = axes.last()
        && points >= form.tuning.vector_from
    {
        let packs = Packs::widest(body, last);
        if !packs.is_empty() && (last == 0 || domain[last].is_multiple_of(packs.width)) {
            return neighbours(form, body, &packs, &roots, points);
        }
    }
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, false);
    form.each(&mut out, body, "i", points, THREADS);
    body.locate(&mut out, &axes, "i");
    body.emit(&mut out, &roots, false)?;
    out.close();
    out.close();
    form.stage(out, name, points.div_ceil(THREADS as usize), THREADS);
    Ok(())
}

/// `packs.width` points a thread, along the last axis.
fn neighbours(form: &mut Form, body: &mut Body, packs: &Packs, roots: &[usize], points: usize) -> Result<()> {
    let (w, last) = (packs.width, body.kernel.domain.len() - 1);
    let units = points.div_ceil(w);
    let live = body.closure(roots);
    let mut out = Source::default();
    let name = form.entry();
    body.head(&mut out, &name, THREADS, false);
    packs.alignment(body, &mut out);
    form.each(&mut out, body, "unit", units, THREADS);
    let t = body.index_type();
    out.line(format!("const {t} i = unit * {};", body.number(w as u64)));
    let left = if points.is_multiple_of(w) {
        format!("{w}u")
    } else {
        let all = body.number(points as u64);
        out.line(format!("const u32 left = (u32)({all} - i < {w}u ? {all} - i : {w}u);"));
        "left".to_string()
    };
    let axes: Vec<usize> = (0..=last).collect();
    body.locate(&mut out, &axes, "i");
    let base = body.coords[last].clone();
    let nothing = vec![false; live.len()];
    packs.load(body, &mut out, &live, &base, &left, None, &nothing);
    packs.begin_stores(body, &mut out, &live);
    out.pragma("#pragma unroll");
    out.open(format!("for (u32 k = 0; k < {w}u; ++k)"));
    if left == "left" {
        out.open("if (k < left)");
    }
    body.coords[last] = format!("({base} + k)");
    body.emit(&mut out, roots, false)?;
    if left == "left" {
        out.close();
    }
    out.close();
    packs.store(body, &mut out, &live, &base, &left);
    out.close();
    out.close();
    form.stage(out, name, units.div_ceil(THREADS as usize), THREADS);
    Ok(())
}
