//! The scenarios of `tests/promises`, each on a device of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::Size;
use crate::harness::{self, Scenario};
use crate::output::{Output, panic_text};

#[path = "../../tests/promises/aliasing.rs"]
mod aliasing;
#[path = "../../tests/promises/autograd.rs"]
mod autograd;
#[path = "../../tests/promises/bounds.rs"]
mod bounds;
#[path = "../../tests/promises/custom.rs"]
mod custom;
#[path = "../../tests/promises/dtypes.rs"]
mod dtypes;
#[path = "../../tests/promises/explained.rs"]
mod explained;
#[path = "../../tests/promises/failures.rs"]
mod failures;
#[path = "../../tests/promises/freezing.rs"]
mod freezing;
#[path = "../../tests/promises/gradients.rs"]
mod gradients;
#[path = "../../tests/promises/held.rs"]
mod held;
#[path = "../../tests/promises/host_code.rs"]
mod host_code;
#[path = "../../tests/promises/random.rs"]
mod random;
#[path = "../../tests/promises/reads.rs"]
mod reads;
#[path = "../../tests/promises/state.rs"]
mod state;
#[path = "../../tests/promises/structure.rs"]
mod structure;
#[path = "../../tests/promises/threads.rs"]
mod threads;

macro_rules! modules {
    ($($name:ident),*) => { &[$((stringify!($name), $name::ALL)),*] };
}

const MODULES: &[(&str, &[(&str, Scenario)])] = modules!(
    aliasing, autograd, bounds, custom, dtypes, explained, failures, freezing, gradients, held, host_code, random,
    reads, state, structure, threads
);

/// Runs them; one that panics did not hold.
pub fn run(size: Size, out: &mut Output) {
    harness::make_devices_with(|| crate::open(false).unwrap_or_else(|e| panic!("{e}")));
    let most = if size == Size::Tiny { 1 } else { usize::MAX };
    let scenarios: Vec<_> =
        MODULES.iter().flat_map(|(m, list)| list.iter().take(most).map(move |s| (*m, s.0, s.1))).collect();
    out.title(&format!("promises: {} scenarios", scenarios.len()));
    // Scenarios panic on purpose, too; what matters is told below.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut held = 0;
    for (module, name, scenario) in &scenarios {
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| scenario(&harness::own_device())));
        let outcome = outcome.map_err(|panic| panic_text(&*panic));
        held += outcome.is_ok() as usize;
        if start.elapsed().as_secs() >= 5 {
            out.say(&format!("{module}::{name} took {:.1} s", start.elapsed().as_secs_f64()));
        }
        out.check("promises", &format!("{module}::{name}"), outcome);
    }
    std::panic::set_hook(hook);
    out.say(&format!("{held} of {} held", scenarios.len()));
}
