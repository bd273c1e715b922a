//! The manual lists the options as the code has them.

use gpucache::config::{OPTIONS, find_option};

/// docs/configuration.md contains the table of options as the code has it. After a change:
/// `UPDATE_EXPECT=1 cargo test --test config` writes it.
#[test]
fn the_manual_has_every_option() {
    const BEGIN: &str = "<!-- options: written by tests/config -->\n";
    const END: &str = "<!-- end of options -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let (before, rest) = manual.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();

    let mut table = String::from(
        "| option | default | values | meaning | interaction | what you gain | from |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for option in OPTIONS {
        let aliases: String = option.aliases.iter().flat_map(|alias| [" (also `", alias, "`)"]).collect();
        let row = format!(
            "| `{}`{aliases} | `{}` | {} | {} | {} | {} | {} |\n",
            option.name,
            option.default_value(),
            option.range,
            option.meaning,
            option.interaction,
            option.gain,
            option.origin
        );
        table.push_str(&row);
    }
    expect_test::expect_file![path].assert_eq(&format!("{before}{BEGIN}{table}{END}{after}"));
}

#[test]
fn options_are_found_by_every_name() {
    for option in OPTIONS {
        for name in std::iter::once(&option.name).chain(option.aliases) {
            assert_eq!(find_option(name).unwrap().name, option.name);
        }
    }
    assert!(find_option("nothing").is_none());
}
