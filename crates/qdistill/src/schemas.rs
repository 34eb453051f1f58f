//! The published schemas are those of the results.

use crate::label::Labelled;
use crate::selftest::SelfTest;
use crate::show::Shown;
use crate::train::Trained;
use cli::schema::check_published;

#[test]
fn the_published_schemas_are_those_of_the_results() {
    let checks = [
        check_published::<Labelled>("qdistill label"),
        check_published::<Shown>("qdistill show"),
        check_published::<Trained>("qdistill train"),
        check_published::<SelfTest>("qdistill selftest"),
    ];
    let wrong: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
