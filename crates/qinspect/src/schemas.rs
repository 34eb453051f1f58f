//! The published schemas are those of the results.

use cli::schema::check_published;
use inspection::activations::Activations;
use inspection::diff::Diff;
use inspection::layers::Layers;
use inspection::memory::Memory;
use inspection::tensors::Tensors;
use inspection::weights::Weights;

#[test]
fn the_published_schemas_are_those_of_the_results() {
    let checks = [
        check_published::<Tensors>("qinspect tensors"),
        check_published::<Weights>("qinspect weights"),
        check_published::<Activations>("qinspect activations"),
        check_published::<Layers>("qinspect layers"),
        check_published::<Memory>("qinspect memory"),
        check_published::<Diff>("qinspect diff"),
    ];
    let wrong: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
