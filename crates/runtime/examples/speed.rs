//! Tokens a second of a model: `speed MODEL [TOKENS] [RUNS] [BATCH]`; no prefill where TOKENS is 0.

use std::{error::Error, io::Write, path::Path, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: speed MODEL [TOKENS] [RUNS] [BATCH]")?;
    let n: usize = args.next().map_or(Ok(512), |a| a.parse())?;
    let runs: usize = args.next().map_or(Ok(5), |a| a.parse())?;
    let batch: usize = args.next().map_or(Ok(1), |a| a.parse())?;
    let mut out = std::io::stdout();
    let model = store::open(Path::new(&path))?;
    let model = runtime::Transformer::load(&model, &runtime::cpu())?;
    let vocab = model.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..n.max(65) as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    writeln!(out, "{:.1} MB resident", model.resident_weight_bytes() as f64 / 1e6)?;

    let mut best = (0f64, 0f64);
    for _ in 0..if n > 0 { runs } else { 0 } {
        let start = Instant::now();
        let hidden = model.hidden(&[&tokens[..n]], None)?;
        let middle = Instant::now();
        model.logits(&hidden)?;
        let rate = |t: std::time::Duration| n as f64 / t.as_secs_f64();
        best = (best.0.max(rate(middle - start)), best.1.max(rate(start.elapsed())));
    }
    if n > 0 {
        writeln!(out, "prefill {n}: {:.0} tokens/s, {:.0} with all logits", best.0, best.1)?;
    }

    let mut fastest = 0f64;
    for _ in 0..runs {
        let mut cache = model.new_cache(batch, 65)?;
        model.hidden(&vec![&tokens[..1]; batch], Some(&mut cache))?;
        let start = Instant::now();
        for t in 1..65 {
            let hidden = model.hidden(&vec![&tokens[t..=t]; batch], Some(&mut cache))?;
            model.logits(&hidden)?;
        }
        fastest = fastest.max((64 * batch) as f64 / start.elapsed().as_secs_f64());
    }
    writeln!(out, "decode, batch {batch}: {fastest:.1} tokens/s")?;
    Ok(())
}
