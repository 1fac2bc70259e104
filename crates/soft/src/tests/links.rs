//! The linker: texts, libraries, the device runtime's functions, options.

use outboard_api::enums::*;
use outboard_wire::doc::{self, JitOptions};

use super::*;

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
/// Functions `twice` and `thrice`, in objects of their own.
const LIBRARY: &[u8] = include_bytes!("../../../image/tests/data/device_functions.a");
/// No PTX, as in the device runtime's library.
const MACHINE_CODE: &[u8] = include_bytes!("../../../image/tests/data/sm_90.cubin");

impl Client {
    /// Links inputs of these types; returns the image, or the status and the error.
    fn link(
        &mut self,
        inputs: &[(u32, &[u8])],
        registers: Option<u32>,
    ) -> Result<Vec<u8>, (CUresult, String)> {
        let (link, image) = self.link_kept(inputs, registers)?;
        self.done(Request::CuLinkDestroy(m::CuLinkDestroy { state: link }));
        Ok(image)
    }

    /// Links inputs; returns the link, too.
    fn link_kept(
        &mut self,
        inputs: &[(u32, &[u8])],
        registers: Option<u32>,
    ) -> Result<(u64, Vec<u8>), (CUresult, String)> {
        let options = JitOptions {
            numbers: registers
                .map(|n| (CU_JIT_MAX_REGISTERS, n))
                .into_iter()
                .collect(),
            ..JitOptions::default()
        };
        let options = doc::to_bytes(&options).unwrap();
        let link = self.mint();
        self.done(Request::LinkCreate(m::LinkCreate {
            link,
            options: &options,
        }));
        for (input_type, input) in inputs {
            let hash = self.images.hold(input.to_vec());
            let add = m::LinkAdd {
                link,
                input_type: *input_type,
                hash: &hash,
                name: b"x",
                options: &[],
            };
            let (_, reply) = self.send(&Request::LinkAdd(add)).unwrap();
            let reply = m::LinkAddReply::decode(&mut Reader::new(&reply)).unwrap();
            refused(reply.status, &reply.error_log)?;
        }
        let complete = Request::LinkComplete(m::LinkComplete { link });
        let (_, reply) = self.send(&complete).unwrap();
        let reply = m::LinkCompleteReply::decode(&mut Reader::new(&reply)).unwrap();
        refused(reply.status, &reply.error_log)?;
        let hash = ImageStore::hash(&reply.hash).unwrap();
        Ok((link, self.images.get(&hash).unwrap().to_vec()))
    }

    /// Loads a linked image; returns its first kernel.
    fn first_kernel(&mut self, image: &[u8]) -> u64 {
        let (library, status, log, _) = self.load(image);
        assert_eq!(status, CUresult::CUDA_SUCCESS, "{log}");
        library << 32
    }

    fn registers(&mut self, kernel: u64) -> i32 {
        let ask = Request::KernelAttributes(m::KernelAttributes { kernel });
        let (_, reply) = self.send(&ask).unwrap();
        let reply = m::KernelAttributesReply::decode(&mut Reader::new(&reply)).unwrap();
        let values = reply.values.as_chunks::<4>().0;
        i32::from_le_bytes(values[CU_FUNC_ATTRIBUTE_NUM_REGS as usize])
    }
}

fn refused(status: u32, log: &[u8]) -> Result<(), (CUresult, String)> {
    let log = String::from_utf8_lossy(log).into_owned();
    CUresult(status).ok().map_err(|status| (status, log))
}

/// A kernel that writes what a function makes of 21.
fn caller(function: &str) -> String {
    format!(
        "{HEADER}.extern .func (.param .b32 result) {function}(.param .b32 value);
        .visible .entry run(.param .u64 out) {{
        .reg .b32 %r; .reg .b64 %rd;
        ld.param.u64 %rd, [out];
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], 21; call.uni (b), {function}, (a);
        ld.param.b32 %r, [b]; }}
        st.global.u32 [%rd], %r; ret; }}"
    )
}

#[test]
fn linked_texts_share_their_symbols() {
    let mut c = client();
    let main = caller("twice");
    let other = format!(
        "{HEADER}.visible .func (.param .b32 result) twice(.param .b32 value) {{
        .reg .b32 %r; ld.param.u32 %r, [value]; add.s32 %r, %r, %r; st.param.b32 [result], %r; ret; }}"
    );
    let inputs = [main.as_bytes(), other.as_bytes()].map(|text| (CU_JIT_INPUT_PTX, text));
    let (state, image) = c.link_kept(&inputs, None).unwrap();
    // The first has the link's own module, and outlives the link; the second is made from the text.
    let kernels = [c.first_kernel(&image), c.first_kernel(&image)];
    c.done(Request::CuLinkDestroy(m::CuLinkDestroy { state }));
    for (kernel, at) in kernels.into_iter().zip([c.base, c.base + 4]) {
        let arguments = params(&[at]);
        c.done(Request::Launch(launch(kernel, 1, 1, &arguments)));
    }
    assert_eq!(c.read_words(c.base, 2), [42, 42]);
}

#[test]
fn static_libraries_and_objects_give_their_texts() {
    let mut c = client();
    let object = LIBRARY.windows(4).position(|w| w == b"\x7fELF").unwrap();
    let arguments = params(&[c.base]);
    for (function, input_type, input, result) in [
        ("thrice", CU_JIT_INPUT_LIBRARY, LIBRARY, 63),
        ("twice", CU_JIT_INPUT_OBJECT, &LIBRARY[object..], 42),
    ] {
        let main = caller(function);
        let inputs = [(CU_JIT_INPUT_PTX, main.as_bytes()), (input_type, input)];
        let image = c.link(&inputs, None).unwrap();
        let kernel = c.first_kernel(&image);
        c.done(Request::Launch(launch(kernel, 1, 1, &arguments)));
        assert_eq!(c.read_words(c.base, 1), [result]);
    }
    let main = caller("missing");
    let inputs = [
        (CU_JIT_INPUT_PTX, main.as_bytes()),
        (CU_JIT_INPUT_LIBRARY, LIBRARY),
    ];
    let (_, log) = c.link(&inputs, None).unwrap_err();
    assert!(log.contains("missing"), "{log}");
    let (status, _) = c
        .link(&[(CU_JIT_INPUT_LIBRARY, &LIBRARY[..3000])], None)
        .unwrap_err();
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_IMAGE);
}

/// Each block writes its number after 1, then what its neighbour wrote.
fn grid_barrier() -> String {
    format!(
        "{HEADER}.extern .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope);
        .extern .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
        .visible .entry run(.param .u64 out) {{
        .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .pred %p;
        ld.param.u64 %rd1, [out];
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x;
        mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
        add.u32 %r3, %r1, 1;
        st.global.u32 [%rd3], %r3;
        {{ .param .b32 a; .param .b64 b; st.param.b32 [a], 1;
        call.uni (b), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %rd4, [b]; }}
        {{ .param .b64 a; .param .b32 f; .param .b32 b; st.param.b64 [a], %rd4; st.param.b32 [f], 0;
        call.uni (b), cudaCGSynchronize, (a, f); ld.param.b32 %r5, [b]; }}
        rem.u32 %r3, %r3, %r2; mul.wide.u32 %rd5, %r3, 4; add.u64 %rd5, %rd1, %rd5;
        ld.global.u32 %r4, [%rd5];
        setp.ne.u32 %p, %r5, 0; @%p mov.u32 %r4, 1000;
        mul.wide.u32 %rd5, %r2, 4; add.u64 %rd3, %rd3, %rd5;
        st.global.u32 [%rd3], %r4; ret; }}"
    )
}

#[test]
fn the_device_runtimes_grid_barrier_is_the_devices_own() {
    let mut c = client();
    let main = grid_barrier();
    let (_, log) = c
        .link(&[(CU_JIT_INPUT_PTX, main.as_bytes())], None)
        .unwrap_err();
    assert!(log.contains("cudaCG"), "{log}");
    let inputs = [
        (CU_JIT_INPUT_LIBRARY, MACHINE_CODE),
        (CU_JIT_INPUT_PTX, main.as_bytes()),
    ];
    let image = c.link(&inputs, None).unwrap();
    let kernel = c.first_kernel(&image);
    let blocks = 40;
    let mut record = [0; doc::LAUNCH_ATTRIBUTE_BYTES];
    record[..4].copy_from_slice(&CU_LAUNCH_ATTRIBUTE_COOPERATIVE.to_le_bytes());
    record[8] = 1;
    let arguments = params(&[c.base]);
    for threads in [1, 96] {
        c.write_words(c.base, &vec![0; 2 * blocks as usize]);
        let mut cooperative = launch(kernel, blocks, threads, &arguments);
        cooperative.attributes = &record;
        c.done(Request::Launch(cooperative));
        let words = c.read_words(c.base, 2 * blocks as usize);
        let expected: Vec<u32> = (0..blocks).map(|i| (i + 1) % blocks + 1).collect();
        assert_eq!(words[blocks as usize..], expected);
    }
    // Without a cooperative launch there is no barrier, and the functions say so.
    c.done(Request::Launch(launch(kernel, 2, 1, &arguments)));
    assert_eq!(c.read_words(c.base + 8, 2), [1000, 1000]);
}

#[test]
fn a_register_limit_of_the_linker_shows_in_the_kernel() {
    let mut c = client();
    let registers: Vec<String> = (0..40)
        .map(|i| format!("add.u64 %rd{}, %rd{i}, 1;", i + 1))
        .collect();
    let kernel = |directive: &str| {
        format!(
            "{HEADER}.visible .entry run(.param .u64 out) {directive} {{ .reg .b64 %rd<41>;
            ld.param.u64 %rd0, [out]; {} st.global.u64 [%rd0], %rd40; ret; }}",
            registers.join(" ")
        )
    };
    for (directive, limit, range) in [
        ("", None, 41..=64),
        ("", Some(32), 16..=32),
        ("", Some(1), 16..=16),
        ("", Some(500), 41..=64),
        (".maxntid 1024", Some(32), 41..=64),
    ] {
        let text = kernel(directive);
        let image = c
            .link(&[(CU_JIT_INPUT_PTX, text.as_bytes())], limit)
            .unwrap();
        let kernel = c.first_kernel(&image);
        let found = c.registers(kernel);
        assert!(range.contains(&found), "{directive} {limit:?}: {found}");
    }
}
