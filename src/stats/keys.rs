//! Names of the statistics, flat and nested [spec 9.2, 9.3].
