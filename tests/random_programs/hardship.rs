//! Calls under hardship: indices out of range, and memory that runs out.

use stepgraph::{DType, Result, Rng, Tensor, Var};

use super::{Deliberate, Ended, Snapshot, World, in_range, same_value};
use crate::program::Program;

impl World {
    /// `t` as indices below `len`, some out of range in wild calls. The same ops in all calls of a wild program.
    pub(super) fn index(&self, t: &Tensor, len: usize) -> Result<Tensor> {
        let index = in_range(t, len)?;
        if self.options.wild == 0 {
            return Ok(index);
        }
        let off = [1i64, -1, 1000, -1000][self.call % 4];
        &index + if self.wild { off } else { 0 }
    }

    fn all_vars(&self) -> Vec<Var> {
        let mut all = self.vars.clone();
        all.extend(self.adam.iter().flat_map(|a| a.state()));
        all.extend(self.sgd.iter().flat_map(|s| s.state()));
        all
    }

    /// What variables hold before a body of a wild program that is run eagerly in place of a step.
    pub(super) fn before_flags(&self, step: u8) -> Option<Vec<(Var, Tensor)>> {
        let modelled = self.options.wild != 0 && step != 0 && !self.traced;
        modelled.then(|| self.all_vars().into_iter().map(|v| (v.clone(), v.get())).collect())
    }

    /// What a step promises of an index out of range, of eager code: nothing is written, and the error is the step's,
    /// unless the closure has one of its own.
    pub(super) fn after_flags(&mut self, before: Option<Vec<(Var, Tensor)>>, result: Ended) -> Ended {
        let Some(before) = before else { return result };
        // A host read tells of indices out of range.
        let probe = Tensor::full((), 0.0, &self.device).expect("a scalar");
        let Err(e) = probe.to_host() else { return result };
        self.hardships[0] += 1;
        for (v, old) in before {
            v.set(&old).expect("an old value");
        }
        match result {
            Ok(Ok(_)) => Ok(Err(e)),
            other => other,
        }
    }

    /// Tries the body with hardly any memory left. False: memory ran out; everything is as before, and there is memory.
    pub(super) fn starve(&mut self, p: &Program, k: usize) -> bool {
        let step = p.steps[k];
        if !self.traced || step == 0 {
            return false;
        }
        let vars: Vec<_> =
            self.all_vars().into_iter().map(|v| (v.clone(), v.get().to_host().expect("a value"))).collect();
        let (kept, logged, outside) = (self.snapshot(), self.log.len(), self.outside.clone());
        let drawn: Vec<(u64, u64)> = self.rngs.iter().zip(self.seeds).map(|(r, seed)| (seed, r.counter())).collect();
        let replayed = self.reported();
        let hog = self.hog(k);
        self.starving = true;
        let mut finished = false;
        let result = self.run_body_until(p, step, &mut finished);
        self.starving = false;
        drop(hog);
        match result {
            Ok(Ok(values)) => {
                values.into_iter().for_each(|t| self.push(t));
                return true;
            }
            // Whatever ended it: what it promised may not be there.
            Ok(Err(_)) => {}
            Err(payload) if payload.is::<Deliberate>() => self.panics += 1,
            Err(payload) => std::panic::resume_unwind(payload),
        }
        self.hardships[1] += 1;
        let now = self.reported();
        // A replay whose launch found no memory has written nothing.
        let launch_failed = finished && now[1] == replayed[1] && now[3] == replayed[3] && now[4] == replayed[4];
        for (i, (v, old)) in vars.iter().enumerate() {
            let held = v.get().to_host().expect("a value");
            if !same_value(&held, old) {
                assert!(!launch_failed, "variable {i} was written by a launch that found no memory");
                let value = Tensor::from_host(old, &self.device);
                v.set(&value.expect("memory")).expect("an old value");
            }
        }
        self.log.truncate(logged);
        self.lose(&kept);
        self.restore(&kept);
        self.outside = outside;
        for (i, (seed, counter)) in drawn.into_iter().enumerate() {
            self.reseed(i, seed, counter);
        }
        false
    }

    /// Remembers what a failed attempt kept: a value or an error, it must stay what it is.
    fn lose(&mut self, before: &Snapshot) {
        let mut made: Vec<Tensor> = self.kept.iter().flatten().chain(&self.pushed).cloned().collect();
        made.extend(self.grads.iter().flatten().flat_map(|g| self.vars.iter().filter_map(|v| g.get(v))));
        let known = |t: &Tensor| before.kept.iter().flatten().chain(&before.pushed).any(|o| o.same(t));
        self.lost = made.into_iter().filter(|t| !known(t)).map(|t| (t.to_host().ok(), t)).collect();
    }

    /// Looks at what failed attempts kept.
    pub(super) fn look_lost(&self) {
        for (old, t) in &self.lost {
            let same = match (old, t.to_host().ok()) {
                (Some(a), Some(b)) => same_value(a, &b),
                (None, None) => true,
                _ => false,
            };
            assert!(same, "{t:?}, kept by a call that found no memory, has changed from {old:?}");
        }
    }

    /// Brings stream `i` to draw number `counter` of `seed`.
    fn reseed(&mut self, i: usize, seed: u64, counter: u64) {
        let rng: &Rng = &self.rngs[i];
        rng.reseed(seed);
        self.seeds[i] = seed;
        while rng.counter() < counter {
            rng.uniform((), &self.other).expect("a draw");
        }
    }

    /// Takes nearly all memory that is left.
    fn hog(&self, k: usize) -> Vec<Tensor> {
        let mut out = Vec::new();
        let mut take = |bytes: usize| {
            let mut count = 0;
            while let Ok(t) = Tensor::from_vec(vec![false; bytes], [bytes], &self.device) {
                assert_eq!(t.dtype(), DType::Bool);
                out.push(t);
                count += 1;
            }
            count
        };
        let counts = [1usize << 20, 1 << 16, 1 << 12, 1 << 8, 64].map(&mut take);
        // Then a little of it is free again.
        let small: usize = counts[4];
        let free = [0, 1, 3, small, small + counts[3]][k % 5];
        out.truncate(out.len() - free.min(out.len()));
        out
    }
}
