//! Every scenario has the causes that it was built to have; the table shows what the doctor named first.

use gpucache::observe::diagnose::{Cause, Diagnosis};

/// A situation, and the causes that must be named, in order.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) expected: &'static [Cause],
    pub(crate) run: fn() -> Diagnosis,
}

fn all() -> Vec<Scenario> {
    let mut all = super::failing::scenarios();
    all.extend(super::overview::scenarios());
    all
}

fn label(cause: Option<Cause>) -> &'static str {
    cause.map_or("(none)", Cause::name)
}

#[test]
fn every_scenario_is_labelled_right() {
    let mut wrong = Vec::new();
    let mut pairs = Vec::new();
    for scenario in all() {
        let diagnosis = (scenario.run)();
        let named = diagnosis.causes();
        println!("{:<52} {}", scenario.name, named.iter().map(|c| c.name()).collect::<Vec<_>>().join(", "));
        if named != scenario.expected {
            wrong.push(format!("{}: expected {:?}\n{diagnosis}", scenario.name, scenario.expected));
        }
        for finding in &diagnosis.findings {
            assert!(!finding.explanation.is_empty() && !finding.remedy.is_empty(), "{}", scenario.name);
            assert!(!finding.figures.is_empty(), "{}: {:?} has no numbers", scenario.name, finding.cause);
        }
        pairs.push((label(scenario.expected.first().copied()), label(named.first().copied())));
    }
    print_confusion(&pairs);
    assert!(wrong.is_empty(), "labelled wrongly:\n{}", wrong.join("\n\n"));
}

/// Rows: the first cause as built; columns: the first cause as named.
fn print_confusion(pairs: &[(&str, &str)]) {
    let labels: Vec<&str> = Cause::ALL.iter().map(|c| c.name()).chain(["(none)"]).collect();
    let row = |first: &str, cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|c| format!("{c:>14}")).collect();
        println!("{first:<13} {}", cells.concat());
    };
    println!();
    row("built \\ named", labels.iter().map(ToString::to_string).collect());
    for built in &labels {
        let count = |named: &str| pairs.iter().filter(|p| p.0 == *built && p.1 == named).count();
        row(built, labels.iter().map(|l| count(l).to_string()).collect());
    }
}

#[test]
fn each_cause_is_first_somewhere_and_some_scenarios_have_two() {
    let all = all();
    for cause in Cause::ALL {
        assert!(all.iter().any(|s| s.expected.first() == Some(&cause)), "{cause:?} is never first");
    }
    assert!(all.iter().filter(|s| s.expected.len() >= 2).count() >= 4);
}
