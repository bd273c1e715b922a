//! Recordings as files: what is written reads back, and damaged or hostile files are refused with a reason.

use std::fs;
use std::path::{Path, PathBuf};

use gpucache::replay::{
    Header, Note, Observation, ObservationReader, Outcome, Request, RequestReader, TraceError, TraceEvent,
    TraceWriter,
};

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpucache-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HEAD: &str = r#"{"format":"gpucache-golden","version":1,"case":"c","kind":"rule","config":"default","alloc_conf":"","total_memory":1073741824,"fraction":null,"allowed_bytes":null,"streams":2,"stream_ptrs":["0","2d1ba880"],"requests":3,"full":["num_ooms"],"seed":7}"#;

fn read_requests(path: &Path) -> Result<Vec<Request>, TraceError> {
    RequestReader::open(path)?.collect()
}

fn read_observations(path: &Path) -> Result<Vec<Observation>, TraceError> {
    ObservationReader::open(path)?.collect()
}

fn requests() -> Vec<Request> {
    vec![
        Request::Alloc { size: 3 << 20, stream: 1 },
        Request::Settings("a:1, b:2".to_owned()),
        Request::Free { back: 1 },
    ]
}

fn observations() -> Vec<Observation> {
    let event = TraceEvent::parse("+ sa 7febf0000000 20971520 1").unwrap();
    let plain =
        Observation { events: vec![], outcome: Outcome::None, deltas: None, full: None, notes: vec![] };
    vec![
        Observation {
            events: vec![event],
            outcome: Outcome::Address(0x7feb_f000_0000),
            deltas: Some([3 << 20, 20 << 20, 0, 0, -5, 1, 0, 0, 1, 0]),
            ..plain.clone()
        },
        plain.clone(),
        Observation {
            full: Some(vec![-1]),
            notes: vec![Note { key: "exc".to_owned(), value: "two\nlines".into() }],
            ..plain
        },
    ]
}

#[test]
fn what_is_written_reads_back() {
    let folder = Folder::new("round-trip");
    let header: Header = serde_json::from_str(HEAD).unwrap();
    for ending in ["", ".zst"] {
        let req = folder.0.join(format!("c.req{ending}"));
        let mut writer = TraceWriter::create(&req, &header).unwrap();
        for r in &requests() {
            writer.request(r).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(read_requests(&req).unwrap(), requests());
        assert_eq!(RequestReader::open(&req).unwrap().header(), &header, "unknown keys are kept too");

        let obs = folder.0.join(format!("c.obs{ending}"));
        let mut writer = TraceWriter::create(&obs, &header).unwrap();
        for o in &observations() {
            writer.observation(o).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(read_observations(&obs).unwrap(), observations());
    }
    assert_eq!(fs::read(folder.0.join("c.req.zst")).unwrap()[..4], [0x28, 0xb5, 0x2f, 0xfd]);
}

/// Each wrong `.req` text, the line at fault and a part of the reason.
#[test]
fn wrong_requests_are_named_by_file_line_and_reason() {
    let folder = Folder::new("wrong-req");
    let long = format!("{HEAD}\nc {}\n", "x".repeat(2 << 20));
    for (text, line, reason) in [
        (String::new(), 1, "empty"),
        ("{}\n".to_owned(), 1, "JSON header"),
        ("a 1 0\n".to_owned(), 1, "JSON header"),
        (HEAD.replace("golden", "silver") + "\n", 1, "unknown format"),
        (HEAD.replace("\"version\":1", "\"version\":2") + "\n", 1, "version 2"),
        (HEAD.replace("2d1ba880", "zzz") + "\n", 1, "hexadecimal"),
        (HEAD.replace("\"streams\":2", "\"streams\":9") + "\n", 1, "stream_ptrs lists 2"),
        (HEAD.replace("\"requests\":3", "\"requests\":99999999999999") + "\n", 1, "not supported"),
        (HEAD.replace("\"seed\"", "\"part\":\"obs\",\"seed\"") + "\n", 1, "'req' part"),
        (HEAD.to_owned(), 1, "ends within a line"),
        (format!("{HEAD}\na 5 2\n"), 2, "stream 2 does not exist"),
        (format!("{HEAD}\na 5 0\nf 2\n"), 3, "allocation 2 back"),
        (format!("{HEAD}\na 5 0\nf 0\n"), 3, "allocation 0 back"),
        (format!("{HEAD}\nhf 1\n"), 2, "allocation 1 back"),
        (format!("{HEAD}\ns\n\n"), 3, "missing"),
        (format!("{HEAD}\ns\ns"), 3, "ends within a line"),
        (format!("{HEAD}\ns\ns\n"), 4, "ends after 2 requests"),
        (format!("{HEAD}\ns\ns\ns\ns\n"), 5, "more requests"),
        (long, 2, "longer than"),
    ] {
        let path = folder.file("case.req", &text);
        let error = read_requests(&path).expect_err(reason);
        assert_eq!((error.line, &error.path), (line, &path), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let path = folder.file("case.req", [HEAD.as_bytes(), b"\n\xff\xfe\n"].concat());
    assert!(read_requests(&path).unwrap_err().to_string().contains("UTF-8"));
    let error = read_requests(&folder.0.join("nothing.req")).unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

#[test]
fn wrong_observations_are_named_by_file_line_and_reason() {
    let folder = Folder::new("wrong-obs");
    for (text, line, reason) in [
        ("* 1\n@ -\n", 2, "stands before"),
        ("@ -\n+ sa 1 2 3\n* 1\n@ -\n", 4, "stands before"),
        ("@ -\n* 1 2\n", 3, "unexpected '2'"),
        ("@ -\n*\n", 3, "begin with '* '"),
        ("@ -\n! exc {\n", 3, "note 'exc'"),
        ("@ -\n! exc\n", 3, "a key and a JSON value"),
        ("+ sa zz 1 0\n", 2, "address 'zz'"),
        ("@ quack\n", 2, "result 'quack'"),
        ("?\n", 2, "begin"),
        ("@ -\n@ -\n", 4, "ends after 2 results"),
        ("@ -\n@ -\n@ -\n+ sa 1 2 3\n", 6, "ends after 3 results"),
        ("@ -\n@ -\n@ -\n@ -\n", 5, "more results"),
    ] {
        let path = folder.file("case.obs", format!("{HEAD}\n{text}"));
        let error = read_observations(&path).expect_err(reason);
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.to_string().contains(reason), "{text:?}: {error}");
    }
}

/// Whatever is cut off or flipped in a compressed file: an answer, never a panic, and never a silent success.
#[test]
fn damaged_compressed_files_are_refused() {
    let folder = Folder::new("damaged");
    let whole = fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/golden/rules/best_fit_smallest.default.req.zst"),
    )
    .expect("the committed recordings");
    let good = read_requests(&folder.file("good.req.zst", &whole)).unwrap();
    for cut in 1..whole.len() {
        let path = folder.file("cut.req.zst", &whole[..cut]);
        assert!(read_requests(&path).is_err(), "cut to {cut} bytes");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let path = folder.file("flipped.req.zst", &bytes);
        // A flipped bit may hit one that means nothing; then the content must be untouched.
        if let Ok(read) = read_requests(&path) {
            assert_eq!(read, good, "byte {at}");
        }
    }
}
