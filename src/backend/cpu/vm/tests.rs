//! Tests of the vector machine.
