//! A real GPU through cudarc's driver API.
