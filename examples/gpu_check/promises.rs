//! The scenarios of `tests/promises`, each on a device of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::Size;
use crate::harness::{self, Scenario};
use crate::output::{Output, panic_text};

macro_rules! scenarios_of {
    ($($path:literal $name:ident),* $(,)?) => {
        $(#[path = $path] mod $name;)*
        const MODULES: &[(&str, &[(&str, Scenario)])] = &[$((stringify!($name), $name::ALL)),*];
    };
}

scenarios_of! {
    "../../tests/promises/aliasing.rs" aliasing,
    "../../tests/promises/autograd.rs" autograd,
    "../../tests/promises/bounds.rs" bounds,
    "../../tests/promises/custom.rs" custom,
    "../../tests/promises/dtypes.rs" dtypes,
    "../../tests/promises/explained.rs" explained,
    "../../tests/promises/failures.rs" failures,
    "../../tests/promises/freezing.rs" freezing,
    "../../tests/promises/gradients.rs" gradients,
    "../../tests/promises/held.rs" held,
    "../../tests/promises/host_code.rs" host_code,
    "../../tests/promises/random.rs" random,
    "../../tests/promises/reads.rs" reads,
    "../../tests/promises/state.rs" state,
    "../../tests/promises/structure.rs" structure,
    "../../tests/promises/threads.rs" threads,
}

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
