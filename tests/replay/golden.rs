//! The committed recordings: all of them can be read and written again.

use std::fs;
use std::path::{Path, PathBuf};

use gpucache::replay::{ObservationReader, RequestReader, Workload};

/// All recordings of a folder, by the path of their `.req` file.
fn recordings(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.to_str().unwrap().ends_with(".req.zst")).collect();
    found.sort();
    found
}

fn observations_of(req: &Path) -> PathBuf {
    PathBuf::from(req.to_str().unwrap().replace(".req.zst", ".obs.zst"))
}

/// The lines of a compressed file, by a decoder that knows nothing of the format.
fn lines(path: &Path) -> Vec<String> {
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(fs::File::open(path).unwrap()).unwrap();
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_line_reads_back_as_written() {
    for folder in ["rules", "fuzz", "real"] {
        for req in recordings(folder) {
            let read: Vec<String> =
                RequestReader::open(&req).unwrap().map(|r| r.unwrap().to_string()).collect();
            assert_eq!(read, lines(&req)[1..], "{}", req.display());

            let obs = observations_of(&req);
            let read: String =
                ObservationReader::open(&obs).unwrap().map(|o| o.unwrap().to_string()).collect();
            let mut expected = lines(&obs).split_off(1);
            // Notes are JSON, whose spelling may change.
            let is_note = |line: &&str| line.starts_with('!');
            let without_notes: Vec<&str> = read.lines().filter(|line| !is_note(line)).collect();
            let expected_notes = expected.iter().filter(|line| is_note(&line.as_str())).count();
            assert_eq!(read.lines().filter(is_note).count(), expected_notes, "{}", obs.display());
            expected.retain(|line| !line.starts_with('!'));
            // The recorder repeats the last line of statistics.
            expected.dedup_by(|a, b| a.starts_with('*') && a == b);
            let same = without_notes.iter().zip(&expected).take_while(|(read, line)| read == line).count();
            assert_eq!((same, same), (without_notes.len(), expected.len()), "{}", obs.display());
        }
    }
}

#[test]
fn a_workload_is_the_allocations_and_frees_of_its_recording() {
    for req in recordings("real") {
        let work = Workload::read(&req).unwrap();
        let played = lines(&req)[1..].iter().filter(|line| "afDCx".contains(&line[..1])).count();
        assert_eq!(work.len(), played, "{}", req.display());
    }
}
