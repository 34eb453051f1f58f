//! Prints the names of the instruction sets that this processor has, best first: what `QEVAL_ISA` takes here.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    runtime::instruction_sets().iter().try_for_each(|name| writeln!(io::stdout(), "{name}"))
}
