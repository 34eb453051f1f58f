//! The recipes of qconvert and qdistill.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = conversion::Recipe::parse("recipe.toml", text);
    }
    let path = fuzz::write("recipe.toml", text);
    let _ = distillation::recipe::Recipe::read(&path);
    if let Ok(recipe) = distillation::recipe::DistillRecipe::read(&path) {
        let _ = recipe.check();
        let _ = recipe.train.check(512);
    }
});
