//! Every case of docs/diagnosis.md, built on a simulated GPU and explained by gpucache itself. The page shows this
//! program's output; a test compares the two.
//!
//! `cargo run --release --example diagnosis [CASE]`

mod steps;

fn main() -> gpucache::Result<()> {
    let wanted = std::env::args().nth(1);
    for (name, run) in steps::ALL {
        if wanted.as_deref().is_none_or(|w| w == *name) {
            println!("--- {name}\n{}\n", run()?.trim_end());
        }
    }
    Ok(())
}
