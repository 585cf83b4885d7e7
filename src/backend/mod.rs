//! Floor 7: what runs plans.

pub mod cpu;
