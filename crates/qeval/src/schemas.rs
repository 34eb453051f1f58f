//! The published schemas are those of the results.

use crate::generate::Report;
use cli::schema::check_published;
use scoring::compare::Perplexities;
use scoring::rows::Comparison;
use scoring::selftest::SelfTest;
use serving::bench::Bench;
use serving::schedule::Schedule;
use serving::speculate::Speculation;

#[test]
fn the_published_schemas_are_those_of_the_results() {
    let checks = [
        check_published::<Comparison>("qeval compare"),
        check_published::<Perplexities>("qeval perplexity"),
        check_published::<Bench>("qeval bench"),
        check_published::<Report>("qeval generate"),
        check_published::<Speculation>("qeval speculate"),
        check_published::<Schedule>("qeval schedule"),
        check_published::<SelfTest>("qeval selftest"),
    ];
    let wrong: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
