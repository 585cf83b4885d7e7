//! Catching up: producing promised values by eager runs of recorded events.
//!
//! Ops are pure, so a value may be computed again, with the same bits; what a launch may have
//! overwritten is never an input here, since only a call's last segment writes in place.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::base::Result;
use crate::tensor::{Tensor, eager};
use crate::trace::session::Session;
use crate::trace::tree::{Def, Kind, ValId};

impl Session {
    /// Produces every promised value that somebody holds.
    pub fn catch_up(&mut self) -> Result<()> {
        let mut alive = Vec::new();
        for ordinal in 0..self.ordinal() {
            let e = self.event(ordinal);
            match (&e.template, &e.extra) {
                (Some(t), _) if Arc::strong_count(&t.0) > 1 => alive.push(e.out),
                (_, Some(x))
                    if e.kind == Kind::Backward && x.table.as_ref().is_some_and(|t| Arc::strong_count(t) > 1) =>
                {
                    alive.extend(x.grads.iter().map(|g| g.1));
                }
                _ => {}
            }
        }
        alive.extend(self.vars.iter().filter(|b| b.dirty).filter_map(|b| b.written));
        self.materialize(&alive)
    }

    /// Makes values ready, with what they depend on, in event order.
    pub fn materialize(&mut self, values: &[ValId]) -> Result<()> {
        let mut stack: Vec<ValId> = values.to_vec();
        let mut seen: FxHashSet<ValId> = FxHashSet::default();
        let mut events: Vec<u32> = Vec::new();
        while let Some(v) = stack.pop() {
            let event = match self.def(v) {
                Def::Made { event } => event,
                Def::Leaf { event, of, .. } => {
                    if self.handle(v)?.0.state.get().is_none() && seen.insert(v) {
                        stack.push(of);
                        events.push(event);
                    }
                    continue;
                }
                _ => continue,
            };
            if self.handle(v)?.0.state.get().is_none() && seen.insert(v) {
                events.push(event);
                stack.extend_from_slice(&self.event(event).operands);
            }
        }
        events.sort_unstable();
        for ordinal in events {
            self.produce(ordinal)?;
        }
        Ok(())
    }

    /// Runs one event whose operands are ready, into its template.
    fn produce(&mut self, ordinal: u32) -> Result<()> {
        let e = self.event(ordinal);
        let Some(template) = e.template.clone() else { return Ok(()) };
        if let Def::Leaf { of, .. } = self.def(e.out) {
            let ready = self.handle(of)?.ready_state()?.clone();
            let _ = template.0.state.set(Ok(ready));
            return Ok(());
        }
        let mut operands: SmallVec<[Tensor; 3]> = SmallVec::new();
        for &v in &e.operands {
            operands.push(self.handle(v)?.clone());
        }
        let refs: SmallVec<[&Tensor; 3]> = operands.iter().collect();
        let (op, loc) = (self.resolve_scalars(&e.op), e.loc);
        let prepared = eager::Prepared { op, ty: template.ty() };
        let (ready, flag) = eager::compute(&prepared, &refs, template.device()).map_err(|e| e.at(loc))?;
        self.note_flag(flag, loc);
        let _ = template.0.state.set(Ok(ready));
        Ok(())
    }
}
