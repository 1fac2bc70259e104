"""Prints 2,000 lines of 60 bytes from a kernel: more than a pipe holds."""

from __future__ import annotations

from cuda import kernels, must, primary_context

TEXT = "hello world " * 4 + "hello world\n"
PTX = f"""
.version 7.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[{len(TEXT) + 1}] = {{{",".join(str(ord(c)) for c in TEXT)},0}};
.visible .entry prints()
{{
    .reg .b64 %rd<4>;
    .reg .b32 %r<3>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    mov.u64 %rd3, 0;
    {{
    .param .b64 format;
    st.param.b64 [format], %rd2;
    .param .b64 arguments;
    st.param.b64 [arguments], %rd3;
    .param .b32 result;
    call.uni (result), vprintf, (format, arguments);
    ld.param.b32 %r1, [result];
    }}
    ret;
}}
"""

primary_context()
(function,) = kernels(PTX.encode(), "prints")
for _ in range(2):
    must("cuLaunchKernel", function, 10, 1, 1, 100, 1, 1, 0, None, None, None)
must("cuCtxSynchronize")
