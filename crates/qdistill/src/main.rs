//! Trains small models.
fn main() {}
