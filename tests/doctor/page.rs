//! docs/diagnosis.md shows what the example prints. `UPDATE_DOCS=1 cargo test --test doctor page` writes it anew.

#[path = "../../examples/diagnosis/steps.rs"]
mod steps;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/diagnosis.md");
const FENCE: &str = "```";

/// Where a case's output stands in the page: after this line, in a fenced block.
fn marker(name: &str) -> String {
    format!("<!-- output of examples/diagnosis: {name} -->")
}

/// The byte range of a case's output in the page.
fn place(page: &str, name: &str) -> std::ops::Range<usize> {
    let marker = marker(name);
    let after =
        page.find(&marker).unwrap_or_else(|| panic!("docs/diagnosis.md lacks {marker}")) + marker.len();
    let open = format!("\n{FENCE}text\n");
    let start = after + page[after..].find(&open).expect("a block follows the marker") + open.len();
    let end = start + page[start..].find(&format!("\n{FENCE}")).expect("the block ends");
    start..end
}

/// Without what differs from run to run, or by who compiles the file.
fn stable(text: &str) -> String {
    let timed = |line: &&str| !line.contains("rate at the first site") && !line.contains("growing since");
    let lines: Vec<&str> = text.lines().filter(timed).map(str::trim_end).collect();
    lines.join("\n")
}

/// Pools are numbered through the whole process, and other tests make some too.
fn output(run: fn() -> gpucache::Result<String>) -> String {
    let text = run().unwrap().replace("tests/doctor/../../", "");
    let Some((before, after)) = text.split_once("pool (0, ") else { return text.trim_end().to_owned() };
    format!("{before}pool (0, 1{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        .trim_end()
        .to_owned()
}

#[test]
fn the_page_shows_what_the_example_prints() {
    let mut page = std::fs::read_to_string(PAGE).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        for (name, run) in steps::ALL {
            let place = place(&page, name);
            page.replace_range(place, &output(*run));
        }
        std::fs::write(PAGE, &page).unwrap();
    }
    for (name, run) in steps::ALL {
        let shown = stable(&page[place(&page, name)]);
        let printed = stable(&output(*run));
        assert_eq!(
            shown, printed,
            "case {name}: UPDATE_DOCS=1 cargo test --test doctor page brings the page up to date"
        );
    }
    let markers = page.matches("<!-- output of examples/diagnosis: ").count();
    assert_eq!(markers, steps::ALL.len(), "an output in the page has no case");
}
