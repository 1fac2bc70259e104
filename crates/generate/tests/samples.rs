//! The samples of generated code are those of the present generators and declarations.

use std::{fs, path::Path};

use outboard_generate::samples;

#[test]
fn samples_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let made = samples::all().expect("declarations");
    for (name, text) in &made {
        let kept = fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(kept == *text, "{name} is out of date: run `make samples`");
    }
    let files = fs::read_dir(folder).expect("samples").count();
    assert_eq!(files, made.len(), "a sample that no generator makes");
}

#[test]
fn safety_comments_stand_before_unsafe_code() {
    for (name, text) in samples::all().expect("declarations") {
        assert!(!text.contains("/// SAFETY"), "{name}");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2) {
            assert!(
                !pair[1].starts_with("unsafe {") || pair[0].starts_with("//"),
                "{name}: {pair:?}"
            );
        }
    }
}
