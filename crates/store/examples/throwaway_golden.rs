//! throwaway
use std::{io::Write, path::Path};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a: Vec<String> = std::env::args().collect();
    let m = store::open(Path::new(&a[1]))?;
    let mut out = std::io::BufWriter::new(std::fs::File::create(&a[2])?);
    let mut log = std::fs::File::create(format!("{}.txt", &a[2]))?;
    writeln!(
        log,
        "{:?}\n{:?}\n{:?}",
        m.config()?,
        m.warnings,
        m.side_files.iter().map(|f| &f.name).collect::<Vec<_>>()
    )?;
    writeln!(log, "tok {}", m.tokenizer()?.get_vocab_size(true))?;
    for (module, s) in m.declared_schemes() {
        let l = m.linear(&module)?;
        writeln!(log, "{module} {s} {}x{} {:?}", l.matrix.rows(), l.matrix.cols(), l.activation)?;
        for v in l.matrix.decode_all() {
            out.write_all(&v.to_le_bytes())?;
        }
    }
    writeln!(log, "{:?}", m.dense("model.norm.weight")?.map(|v| v.len()))?;
    Ok(())
}
