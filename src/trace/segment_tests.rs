//! Plans are chosen by what survives and by how the values of earlier segments lie.

use std::sync::Arc;

use super::Source;
use crate::base::Result;
use crate::pass;
use crate::tensor::{Device, Tensor, recorder};
use crate::trace::session::Session;

/// One call, as `jit::Step::run` makes it.
fn call<R>(mut session: Box<Session>, f: impl FnOnce() -> Result<R>) -> (Box<Session>, R) {
    session.begin();
    let stamp = session.stamp;
    recorder::install(session, stamp);
    let result = f().unwrap();
    let mut session: Box<Session> = recorder::remove().unwrap().into_any().downcast().ok().unwrap();
    session.close().unwrap();
    (session, result)
}

/// A plan for a value that lay otherwise is not taken: another one is compiled, and the first one is still there.
#[test]
fn a_plan_for_another_layout_is_not_taken() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device).unwrap();
    let work = || {
        let y = (&x * 2.0)?;
        let s = y.sum(())?.item::<f32>()?;
        &y + s as f64
    };
    let want = [22.0, 24.0, 26.0, 28.0];
    let mut session = Box::new(Session::new(pass::Options::default(), 8, true));
    for _ in 0..4 {
        let (next, y) = call(session, work);
        assert_eq!(y.to_vec::<f32>().unwrap(), want);
        session = next;
    }
    assert_eq!(session.stats.compiles, 2);
    // As if a call had found the value transposed.
    session.records = [None, None];
    let plans = session.tree.paths[0].events.iter_mut().filter_map(|e| e.extra.as_mut()).last().map(|x| &mut x.plans);
    let plan = Arc::get_mut(&mut plans.unwrap()[0]).unwrap();
    let input = plan.inputs.iter_mut().find(|i| matches!(i.source, Source::Event(_))).unwrap();
    input.layout = input.layout.permute(&[1, 0]);
    let (session, y) = call(session, work);
    assert_eq!(y.to_vec::<f32>().unwrap(), want);
    assert_eq!(session.stats.compiles, 3);
    let (session, y) = call(session, work);
    assert_eq!(y.to_vec::<f32>().unwrap(), want);
    assert_eq!((session.stats.compiles, session.plans), (3, 3));
}
