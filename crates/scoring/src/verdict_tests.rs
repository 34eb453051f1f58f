use super::*;
use crate::stats::{Bootstrap, block_sums};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn evidence(ratio: [f64; 3], kl: [f64; 3]) -> Evidence {
    let interval = |v: [f64; 3]| Some(Interval(v[0], v[2]));
    Evidence { ratio: ratio[1], ratio_ci95: interval(ratio), kl: kl[1], kl_ci95: interval(kl), tokens: 1000 }
}

fn judged(ratio: [f64; 3], kl: [f64; 3]) -> (Verdict, Option<Because>) {
    evidence(ratio, kl).verdict(Margin::default())
}

#[test]
fn the_four_rows_of_the_rule() {
    let small = [0.003, 0.004, 0.005];
    assert_eq!(judged([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]), (Verdict::Same, None));
    assert_eq!(judged([0.9999, 1.0, 1.0001], [1e-8, 2e-8, 3e-8]), (Verdict::Same, None));
    assert_eq!(judged([0.999, 1.001, 1.003], small), (Verdict::Equivalent, None));
    // A change whose interval excludes 0, within the margin.
    assert_eq!(judged([1.001, 1.003, 1.005], small), (Verdict::Equivalent, None));
    assert_eq!(judged([1.02, 1.03, 1.04], small), (Verdict::Different, Some(Because::PerplexityUp)));
    assert_eq!(judged([0.96, 0.97, 0.98], small), (Verdict::Different, Some(Because::PerplexityDown)));
    // Losses that cancel.
    assert_eq!(judged([0.998, 1.0, 1.002], [0.2, 0.3, 0.4]), (Verdict::Different, Some(Because::Kl)));
    assert_eq!(judged([0.98, 1.001, 1.02], small), (Verdict::Inconclusive, Some(Because::Perplexity)));
    assert_eq!(judged([0.999, 1.001, 1.003], [0.008, 0.0095, 0.012]), (Verdict::Inconclusive, Some(Because::Kl)));
}

#[test]
fn a_point_estimate_decides_nothing() {
    // +1.5% and a KL of 0.02 are estimated; neither is shown to be beyond the margin.
    assert_eq!(judged([0.99, 1.015, 1.05], [0.005, 0.02, 0.04]).0, Verdict::Inconclusive);
    // Twelve times the perplexity is estimated, eight times is possible.
    assert_eq!(judged([8.0, 12.0, 18.0], [1.0, 1.5, 1.9]).0, Verdict::Different);
    assert_eq!(judged([11.0, 12.0, 13.0], [1.0, 1.5, 1.9]), (Verdict::Destroyed, Some(Because::PerplexityUp)));
    assert_eq!(judged([1.0, 1.1, 1.2], [2.1, 2.5, 3.0]), (Verdict::Destroyed, Some(Because::Kl)));
    let bare = Evidence { ratio: 1.0, ratio_ci95: None, kl: 0.0, kl_ci95: None, tokens: 20 };
    assert_eq!(bare.verdict(Margin::default()), (Verdict::Inconclusive, Some(Because::ShortText)));
    assert_eq!(bare.tokens_to_settle(Margin::default()), Some(500));
    let none = Evidence { ratio: f64::NAN, ..bare };
    assert_eq!(none.verdict(Margin::default()).0, Verdict::Unscored);
}

/// Strength of a verdict's claim; a weaker verdict of the same claim has a smaller number.
fn strength(verdict: Verdict) -> (u8, u8) {
    match verdict {
        Verdict::Same => (1, 2),
        Verdict::Equivalent => (1, 1),
        Verdict::Destroyed => (2, 2),
        Verdict::Different => (2, 1),
        _ => (0, 0),
    }
}

/// Returns whether `fewer` is `more`, or less of the same claim.
fn weakens(more: Verdict, fewer: Verdict) -> bool {
    let ((claim, force), (other, rest)) = (strength(more), strength(fewer));
    other == 0 || (claim == other && rest <= force)
}

proptest! {
    #[test]
    fn a_wider_interval_only_weakens_the_verdict(
        ratio in -3f64..3.0, scale in 1e-4f64..1.0, ends in [0f64..1.0, 0f64..1.0, 0f64..1.0, 0f64..1.0],
        more in [0f64..1.0, 0f64..1.0, 0f64..1.0, 0f64..1.0], kl in 0f64..3.0, margin in 0.0001f64..1.0, power in 0i32..7,
    ) {
        let small = 10f64.powi(-power);
        let (ratio, kl) = (ratio * small, kl * small);
        let narrow = |i: usize| ends[i] * scale * small;
        let wide = |i: usize| narrow(i) + more[i] * scale;
        let of = |width: &dyn Fn(usize) -> f64| {
            let ratios = [ratio - width(0), ratio, ratio + width(1)].map(f64::exp);
            evidence(ratios, [(kl - width(2)).max(0.0), kl, kl + width(3)]).verdict(Margin(margin)).0
        };
        let (first, second) = (of(&narrow), of(&wide));
        prop_assert!(weakens(first, second), "{first} became {second}");
        // The two words that most artifacts have become inconclusive and nothing else.
        if matches!(first, Verdict::Equivalent | Verdict::Different) {
            prop_assert!(second == first || second == Verdict::Inconclusive);
        }
    }
}

/// Per-token changes and divergences of an artifact that loses `loss` nats on average.
fn tokens(seed: u64, n: usize, loss: f64, kl: f64) -> (Vec<f64>, Vec<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut wave = || (0..4).map(|_| rng.random::<f64>() - 0.5).sum::<f64>();
    (0..n).map(|_| (loss + 0.15 * wave(), kl * (0.6 * wave() + 1.0).max(0.1))).unzip()
}

fn of_prefix(change: &[f64], kl: &[f64]) -> Evidence {
    let weights = block_sums(&vec![1.0; change.len()]);
    let bootstrap = Bootstrap { seed: 1, resamples: 300 };
    let intervals = bootstrap.ratios(&[&block_sums(change), &block_sums(kl)], &weights);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    Evidence {
        ratio: mean(change).exp(),
        ratio_ci95: intervals[0].map(|i| i.map(f64::exp)),
        kl: mean(kl),
        kl_ci95: intervals[1],
        tokens: change.len(),
    }
}

#[test]
fn with_fewer_tokens_a_verdict_becomes_inconclusive() {
    let margin = Margin::default();
    let mut settled = 0;
    for (seed, (loss, kl)) in
        [(0.0, 0.004), (0.002, 0.004), (0.03, 0.02), (0.0, 0.05), (0.2, 0.2)].into_iter().enumerate()
    {
        for seed in (0..40).map(|s| 100 * seed as u64 + s) {
            let (change, kl) = tokens(seed, 16_384, loss, kl);
            let whole = of_prefix(&change, &kl).verdict(margin).0;
            assert_ne!(whole, Verdict::Inconclusive, "{loss}");
            for n in [64, 256, 1024, 4096] {
                let fewer = of_prefix(&change[..n], &kl[..n]).verdict(margin).0;
                assert!(fewer == whole || fewer == Verdict::Inconclusive, "{loss}, {n} tokens: {whole} was {fewer}");
                settled += usize::from(fewer == whole);
            }
        }
    }
    assert!(settled > 100 && settled < 700, "{settled} of 800: both answers occur");
}

/// Changes and divergences of single tokens as they are on prose, or with heavier tails: lognormal
/// divergences of mean `kl` whose logarithm has the standard deviation `spread`, and changes whose
/// size goes with them.
fn heavy(rng: &mut ChaCha8Rng, n: usize, (loss, kl): (f64, f64), spread: f64) -> (Vec<f64>, Vec<f64>) {
    let mut normal = || {
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
    };
    let one = |_| {
        let size = (spread * normal() - spread * spread / 2.0).exp();
        (loss + (2.0 * kl * size).sqrt() * normal(), kl * size)
    };
    (0..n).map(one).unzip()
}

#[test]
fn a_short_text_settles_nothing() {
    let margin = Margin::default();
    let near = |tokens| Evidence { tokens, ..evidence([0.999, 1.0, 1.001], [0.001, 0.002, 0.003]) };
    assert_eq!(near(499).verdict(margin), (Verdict::Inconclusive, Some(Because::ShortText)));
    assert_eq!(near(499).tokens_to_settle(margin), Some(500));
    assert_eq!(near(500).verdict(margin).0, Verdict::Equivalent);
    let far = Evidence { tokens: 300, ..evidence([1.2, 1.3, 1.4], [0.1, 0.2, 0.3]) };
    assert_eq!(far.verdict(margin).0, Verdict::Inconclusive);
    let wide = Evidence { tokens: 250, ..evidence([0.9, 1.0, 1.1], [0.001, 0.002, 0.003]) };
    assert!(wide.tokens_to_settle(margin).is_some_and(|n| n > 10_000), "{:?}", wide.tokens_to_settle(margin));
}

/// The beginning of a text seldom claims what the whole of it doesn't: the test errs at each end once in
/// forty, and only where the true difference lies at the margin.
#[test]
fn beginnings_of_a_text_claim_no_more_than_the_whole() {
    const TEXTS: usize = 100;
    let margin = Margin::default();
    let nats = margin.nats();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    // Loss and KL, and how many of 100 beginnings may claim more.
    let artifacts = [((0.0, 1.25 * nats), 2), ((0.0, 0.5 * nats), 2), ((0.0, nats), 8), ((1.2 * nats, 0.5 * nats), 8)];
    for spread in [1.2, 1.6] {
        for (artifact, most) in artifacts {
            let mut more = [0; 4];
            for _ in 0..TEXTS {
                let (change, kl) = heavy(&mut rng, 8192, artifact, spread);
                let of = |n: usize| of_prefix(&change[..n], &kl[..n]).verdict(margin).0;
                let whole = of(8192);
                for (more, n) in more.iter_mut().zip([512, 1024, 2048, 4096]) {
                    *more += usize::from(!weakens(whole, of(n)));
                }
                assert_eq!(of(499), Verdict::Inconclusive);
            }
            assert!(more.iter().all(|&m| m <= most), "{artifact:?}, spread {spread}: {more:?} of {TEXTS}");
        }
    }
}

#[test]
fn the_tokens_that_would_settle_it_do() {
    let margin = Margin::default();
    for (loss, kl) in [(0.002, 0.004), (0.02, 0.004)] {
        let (mut asked, mut kept) = (0, 0);
        for seed in 0..60 {
            let (change, kl) = tokens(seed, 60_000, loss, kl);
            let few = of_prefix(&change[..512], &kl[..512]);
            let Some(needed) = few.tokens_to_settle(margin) else { continue };
            asked += 1;
            let n = (needed as usize).min(change.len());
            kept += usize::from(of_prefix(&change[..n], &kl[..n]).verdict(margin).0 != Verdict::Inconclusive);
        }
        assert!(asked > 20 && kept * 10 >= asked * 6, "{loss}: {kept} of {asked}");
    }
}

#[test]
fn how_many_tokens_would_settle_it() {
    let margin = Margin::default();
    let nats = margin.nats();
    // 0.004 nats from the margin, and 0.008 to the interval's end: 4 x 2.043 times the tokens.
    let e = |m: f64, w: f64| evidence([m - w, m, m + w].map(f64::exp), [0.003, 0.004, 0.005]);
    assert_eq!(e(nats - 0.004, 0.008).tokens_to_settle(margin), Some(8200));
    assert_eq!(e(nats + 0.004, 0.008).tokens_to_settle(margin), Some(8200));
    assert_eq!(e(-nats - 0.004, 0.008).tokens_to_settle(margin), Some(8200));
    // At the margin, and settled already.
    assert_eq!(e(nats, 0.008).tokens_to_settle(margin), None);
    assert_eq!(e(0.0, 0.001).tokens_to_settle(margin), None);
}

#[test]
fn margins_are_percentages() {
    assert_eq!("1%".parse::<Margin>(), Ok(Margin::default()));
    assert_eq!("0.25%".parse::<Margin>().map(|m| m.to_string()), Ok("0.25%".into()));
    for wrong in ["1", "0%", "-1%", "x%", "NaN%", "101%", "inf%", ""] {
        assert!(wrong.parse::<Margin>().is_err(), "{wrong}");
    }
    assert!((Margin::default().nats() - 0.00995).abs() < 1e-5);
    let json = serde_json::to_value(Margin::default()).expect("serializes");
    assert_eq!(json["perplexity"], 0.01);
}

#[test]
fn the_sentences_name_the_thresholds() {
    let (rule, legend) = (rule(Margin::default()), legend(Margin::default()));
    for part in ["1%", "0.00995"] {
        assert!(rule.contains(part) && legend.contains(part), "{part}: {rule} {legend}");
    }
    for part in ["1e-6", "above 10 times", "2 nats"] {
        assert!(rule.contains(part), "{part}: {rule}");
    }
    for word in [Verdict::Same, Verdict::Equivalent, Verdict::Different, Verdict::Inconclusive] {
        assert!(
            rule.contains(&format!("{word} = "))
                && rule_table(Margin::default()).iter().any(|r| r[2] == word.to_string())
        );
    }
    assert_eq!(serde_json::to_string(&Verdict::Equivalent).expect("serializes"), "\"equivalent\"");
    assert_eq!(serde_json::to_string(&Because::PerplexityUp).expect("serializes"), "\"perplexity_up\"");
}
