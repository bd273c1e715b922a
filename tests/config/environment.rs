//! Options from the environment.

use std::ffi::OsString;

use gpucache::Config;
use gpucache::config::ConfigError;

fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(*v)))
}

#[test]
fn precedence_of_the_variables() {
    let all = [
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:104"),
        ("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:103"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:102"),
        ("GPUCACHE_ALLOC_CONF", "max_split_size_mb:101"),
    ];
    assert_eq!(from(&[]).unwrap(), Config::default());
    for count in 1..=all.len() {
        let expected = all[count - 1].1;
        assert_eq!(from(&all[..count]).unwrap().source, expected);
    }
    // Set but empty is set, as in PyTorch.
    let empty = [("PYTORCH_CUDA_ALLOC_CONF", ""), ("PYTORCH_ALLOC_CONF", "expandable_segments:True")];
    assert!(!from(&empty).unwrap().expandable_segments);
}

#[test]
fn variables_that_turn_caching_off() {
    for name in ["GPUCACHE_NO_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"] {
        assert!(!from(&[(name, "1")]).unwrap().caching);
        for other in ["", "0", "2", "true"] {
            assert!(from(&[(name, other)]).unwrap().caching, "{name}={other}");
        }
    }
}

#[test]
fn mistakes_name_the_variable() {
    let error = from(&[("PYTORCH_ALLOC_CONF", "foo:1")]).unwrap_err().to_string();
    assert_eq!(error, "PYTORCH_ALLOC_CONF: Unrecognized key 'foo' in allocator config.");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text() {
    use std::os::unix::ffi::OsStringExt;
    let get = |name: &str| (name == "GPUCACHE_ALLOC_CONF").then(|| OsString::from_vec(vec![b'a', 0xff]));
    let error = Config::from_variables(get).unwrap_err().to_string();
    assert!(error.starts_with("GPUCACHE_ALLOC_CONF: the options are not valid UTF-8"), "{error}");
}
