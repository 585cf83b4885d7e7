//! What nobody ordered may run in any order: the promises hold in all of them.

use crate::harness::{Scenario, make_devices_with};
use crate::{device, turn};

// The promises' files bring their scenarios; here they run one by one, in several orders.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        pub const ALL: &[(&str, $crate::harness::Scenario)] = &[$((stringify!($name), $name)),*];
    };
}

#[path = "../promises/aliasing.rs"]
mod aliasing;
#[path = "../promises/held.rs"]
mod held;
#[path = "../promises/state.rs"]
mod state;

#[test]
fn promises_hold_in_any_order() {
    let Some(_turn) = turn() else { return };
    make_devices_with(device);
    let chosen: [(&[(&str, Scenario)], usize); 3] = [(aliasing::ALL, 1), (held::ALL, 3), (state::ALL, 3)];
    for (all, every) in chosen {
        for (name, scenario) in all.iter().step_by(every) {
            for (seed, reversed) in [(2, false), (3, true), (4, false)] {
                println!("{name}, order {seed}");
                cuda_sim::set_order_seed(seed);
                cuda_sim::reverse_fibers(reversed);
                scenario(&device());
            }
        }
    }
    cuda_sim::reverse_fibers(false);
}
