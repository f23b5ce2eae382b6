"""How the pretend SGLang answers a Generate: checks, chunks, meta_info, aborts, as its Python side makes them."""

import time

import rig_engine
import rigkit


class Answers:
    """Requests in the extension's dictionaries to chunks in the extension's dictionaries."""

    def __init__(self, args, engine, text, bootstrap):
        self.args, self.engine, self.text, self.bootstrap = args, engine, text, bootstrap

    def _check(self, request) -> tuple[rig_engine.Job, rig_engine.Rank]:
        """What SGLang's TokenizerManager refuses: arrives as INTERNAL with the text."""
        a, params = self.args, dict(request.get("sampling_params") or {})
        prompt = request.get("input_ids") or (self.text.encode(request["text"]) if request.get("text") else [])
        if not prompt:
            raise ValueError("input_ids cannot be empty.")
        if len(prompt) >= a.context_length:
            raise ValueError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length"
                f" ({a.context_length} tokens)."
            )
        most = params.get("max_new_tokens", 128)
        if "max_new_tokens" in params and most + len(prompt) > a.context_length:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {a.context_length} tokens."
            )
        if not 0 < params.get("top_p", 1) <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {params['top_p']}.")
        if params.get("temperature", 1) < 0:
            raise ValueError(f"temperature must be a non-negative finite number, got {params['temperature']}.")
        lora = request.get("lora_path")
        if lora and lora not in a.lora:
            raise ValueError(f"The following requested LoRA adapters are not loaded: {{'{lora}'}}")
        rank, routed = self.engine.least_loaded(), request.get("routed_dp_rank")
        if a.role == "prefill" and request.get("bootstrap_room") is not None:
            rank = self.engine.ranks[request["bootstrap_room"] % a.dp_size]
        if routed is not None and not (a.dp_size == 1 and routed == 0):
            if not 0 <= routed < a.dp_size:
                raise ValueError(f"routed_dp_rank={routed} out of range [0, {a.dp_size})")
            rank = self.engine.ranks[routed]
        stop = params.get("stop") or ()
        extra = {k: v for k, v in (("session_id", request.get("session_id")), ("lora_name", lora)) if v}
        job = rig_engine.Job(
            rid=request["rid"],
            prompt=tuple(prompt),
            max_tokens=min(most, a.context_length - len(prompt) - 1),
            min_tokens=params.get("min_new_tokens", 0),
            stop_ids=frozenset(params.get("stop_token_ids") or ()),
            stop_strings=tuple([stop] if isinstance(stop, str) else stop),
            eos=None if params.get("ignore_eos") else a.eos_id,
            namespace=lora or "",
            stored_extra=extra,
        )
        return job, rank

    async def chunks(self, request, is_disconnected):
        a, stream, began = self.args, bool(request.get("stream")), time.monotonic()
        job, rank = self._check(request)
        room, gate = request.get("bootstrap_room"), None

        def rejected(message, code):
            return {
                "output_ids": [],
                "text": "",
                "meta_info": {
                    "id": job.rid,
                    "finish_reason": {"type": "abort", "message": message, "status_code": code, "err_type": None},
                    "completion_tokens": 0,
                    "weight_version": "default",
                    "e2e_latency": time.monotonic() - began,
                },
            }

        refusal = None
        if code := self.engine.faults.get("abort_status"):
            refusal = "injected rejection", code
        elif a.role != "null" and room is None:
            refusal = (
                f"Invalid request: Disaggregated request received without bootstrap room id. req.rid='{job.rid}'",
                400,
            )
        elif a.max_queued is not None and rank.running >= a.max_running and rank.waiting >= a.max_queued:
            refusal = "The request queue is full.", 503
        if refusal:
            if not stream:  # HTTPException's text has the code in front, ValueError's has not
                raise ValueError(refusal[0] if refusal[1] == 400 else f"{refusal[1]}: {refusal[0]}")
            yield rejected(*refusal), True
            return
        if a.role == "prefill":
            gate = self.bootstrap.prefill_gate(room, rank.number, job.prompt)
        elif a.role == "decode":
            gate = self.bootstrap.decode_gate(
                request.get("bootstrap_host") or "", request.get("bootstrap_port") or 0, room, job.prompt
            )

        out: list[int] = []
        try:
            async for step in self.engine.run(job, rank, gate):
                if is_disconnected and not stream and is_disconnected():
                    job.aborted = True
                out += step.new
                if stream or step.finish:
                    yield self._chunk(request, job, rank, out, step, began), step.finish is not None
        except TimeoutError as error:
            if not stream:
                raise
            yield rejected(str(error), 500), True

    def _chunk(self, request, job, rank, out, step, began) -> dict:
        a, incremental = self.args, bool(request.get("stream")) and self.args.incremental
        first = step.total - len(step.new) if incremental else 0
        if step.finish == "abort":
            first = max(0, step.total - 1) if incremental else 0  # upstream repeats the last token here
        ids = out[first:]
        reason = {
            None: None,
            "length": {"type": "length", "length": step.total},
            "stop": {"type": "stop", "matched": step.matched},
            "abort": {
                "type": "abort",
                "message": "Abort in waiting queue" if not out else "Aborted",
                "status_code": None,
                "err_type": None,
            },
        }[step.finish]
        meta = {
            "id": job.rid,
            "finish_reason": reason,
            "prompt_tokens": len(job.prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": step.total,
            "cached_tokens": step.cached,
        }
        if a.dp_size > 1:
            meta["dp_rank"] = rank.number
        if request.get("return_logprob"):
            meta |= self._logprobs(request, job, out, first)
        if first == 0 and ids and (step.total == len(step.new)):
            meta["response_sent_to_client_ts"] = time.time()
        if step.finish:
            meta["e2e_latency"] = time.monotonic() - began
        text = self.text.decode(out)
        if isinstance(step.matched, str):
            text = text[: text.index(step.matched)]
        return {"text": text[len(self.text.decode(out[:first])) :], "output_ids": ids, "meta_info": meta}

    def _logprobs(self, request, job, out, first) -> dict:
        def entries(tokens, none_first=False):
            return [
                [None if none_first and i == 0 else rigkit.likely(t, 0, self.args.vocab)[0], t, None]
                for i, t in enumerate(tokens)
            ]

        def tops(tokens, k, none_first=False):
            return [
                None
                if none_first and i == 0
                else [[value, other, None] for other, value in rigkit.likely(t, k, self.args.vocab)[2]]
                for i, t in enumerate(tokens)
            ]

        start, k = request.get("logprob_start_len", -1), request.get("top_logprobs_num") or 0
        prompt = job.prompt[start:] if start is not None and start >= 0 else ()
        meta = {
            "input_token_logprobs": entries(prompt, start == 0),
            "output_token_logprobs": entries(out[first:]),
            "output_token_logprobs_length": len(out),
        }
        if k:
            meta |= {"input_top_logprobs": tops(prompt, k, start == 0), "output_top_logprobs": tops(out[first:], k)}
        return meta
