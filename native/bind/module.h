// Each file in this folder adds one part of the core to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace fastload {

void bind_decode(nanobind::module_& module);
void bind_decode_requests(nanobind::module_& module);
void bind_jpeg_header(nanobind::module_& module);
void bind_pack(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_random(nanobind::module_& module);
void bind_records(nanobind::module_& module);
void bind_rewrite(nanobind::module_& module);
void bind_ticket(nanobind::module_& module);
void bind_verify(nanobind::module_& module);
void bind_warp(nanobind::module_& module);

}  // namespace fastload
