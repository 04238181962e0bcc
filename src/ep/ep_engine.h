/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine by copy engine: the host's half (kernels/combine_pull.h has the other). In order: check, args,
 * enter on the caller's stream, push on the engine's, the combine kernel on the caller's, join. */
#ifndef TERN_EP_ENGINE_H
#define TERN_EP_ENGINE_H

#include "ep/ep.h"

/* TERN_UNSUPPORTED in a capture. */
enum tern_status terni_engine_check_stream(const struct tern_ep *ep, struct tern_stream *stream);
enum tern_status terni_engine_check(const struct tern_route *route, const struct tern_combine_args *a,
                                    struct tern_stream *stream);
/* Bytes at the front of staging that the rows take. */
uint64_t terni_engine_staging(const struct tern_ep *ep, const struct tern_combine_args *a);
void terni_engine_args(struct tern_route *route, const struct tern_combine_args *a, struct engine_args *e);
enum tern_status terni_engine_enter(struct tern_ep *ep, const struct op_frame *f, int num_columns,
                                    struct tern_stream *stream);
enum tern_status terni_engine_push(struct tern_route *route, const struct tern_combine_args *a,
                                   const struct engine_args *e, struct tern_stream *stream);
enum tern_status terni_engine_join(struct tern_ep *ep, struct tern_stream *stream);

#endif
