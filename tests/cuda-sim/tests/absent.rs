//! Stand-ins that lack something; a process of its own, for there is one choice per process.

#[test]
fn some_functions_and_a_library_can_lack() {
    let options = cuda_sim::Options {
        without: vec!["cuGraphUpload".into(), "nvrtcGetCUBIN".into()],
        no_cublaslt: true,
        ..Default::default()
    };
    match cuda_sim::install_with(&options) {
        Err(cuda_sim::Missing::Compiler) => {
            eprintln!("skipped: {}", cuda_sim::Missing::Compiler);
            return;
        }
        other => other.unwrap(),
    }
    for (name, there) in [
        ("cuGraphUpload", false),
        ("cuGraphLaunch", true),
        ("nvrtcGetCUBIN", false),
        ("nvrtcGetPTX", true),
        ("cublasLtCreate", false),
    ] {
        assert_eq!(!cuda_sim::symbol(name).is_null(), there, "{name}");
    }
    // The choice stands.
    assert!(cuda_sim::install_with(&options).is_ok());
    assert!(matches!(cuda_sim::install(), Err(cuda_sim::Missing::Installed)));
}
