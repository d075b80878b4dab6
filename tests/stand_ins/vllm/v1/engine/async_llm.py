# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
from types import SimpleNamespace

from vllm.exceptions import QueueOverflowError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError


class AsyncLLM:
    def __init__(self, args, stat_loggers):
        if not args.model:
            raise ValueError("no model")
        config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=args.max_model_len))
        self.args = args
        self.loggers = [make(config, 0) for make in stat_loggers or ()]
        self.aborted = []
        self.seen = []
        self.errored = False
        self.is_shut_down = False
        self._stopped = asyncio.Event()

    @classmethod
    def from_engine_args(cls, engine_args, start_engine_loop=True, usage_context=None, stat_loggers=None):
        return cls(engine_args, stat_loggers)

    def shutdown(self, timeout=None):
        self.is_shut_down = True

    async def abort(self, request_id, internal=False):
        self.aborted.append(request_id)

    def go(self):
        self._stopped.set()

    async def generate(self, prompt, sampling_params, request_id, *, lora_request=None):
        self.seen.append((prompt, sampling_params, lora_request))
        text = prompt if isinstance(prompt, str) else prompt["prompt"]
        if text.startswith("full"):
            raise QueueOverflowError
        try:
            async for output in self._generate(text, sampling_params, request_id, lora_request):
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            await self.abort(request_id, internal=True)
            raise

    async def _generate(self, text, params, request_id, lora):
        words = [" " + word for word in text.split()]
        if lora is not None:
            words = [" " + lora.lora_path]
        tokens = [index % len(words) for index in range(params.max_tokens)]
        for count in range(1, len(tokens) + 1):
            if text.startswith("die"):
                self.errored = True
                self.go()
            elif text.startswith("wait") and count > 1:
                await self._stopped.wait()
            await asyncio.sleep(0)
            if self.errored:
                raise EngineDeadError
            finished = count == len(tokens)
            self._record(text, count, finished)
            if finished or params.output_kind is RequestOutputKind.CUMULATIVE:
                yield self._output(text, params, words, tokens[:count], finished, request_id)

    def _output(self, text, params, words, tokens, finished, request_id):
        values = None
        if params.logprobs is not None:
            values = [{token: SimpleNamespace(logprob=-0.5, rank=1, decoded_token=words[token])} for token in tokens]
        completion = SimpleNamespace(
            index=0,
            text="".join(words[token] for token in tokens),
            token_ids=tokens,
            finish_reason="length" if finished else None,
            cumulative_logprob=None if values is None else -0.5 * len(tokens),
            logprobs=values,
        )
        return SimpleNamespace(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=list(range(len(words))),
            outputs=[completion] * params.n,
            finished=finished,
        )

    def _record(self, text, count, finished):
        request = SimpleNamespace(e2e_latency=0.2, num_prompt_tokens=len(text.split()), num_generation_tokens=count)
        first = count == 1
        iteration = SimpleNamespace(
            num_prompt_tokens=len(text.split()) if first else 0,
            num_generation_tokens=1,
            num_preempted_reqs=0,
            time_to_first_tokens_iter=[0.03] if first else [],
            inter_token_latencies_iter=[] if first else [0.02],
            n_params_iter=[1] if finished else [],
            finished_requests=[request] if finished else [],
        )
        scheduler = SimpleNamespace(num_running_reqs=1, num_waiting_reqs=0)
        for logger in self.loggers:
            logger.record(engine_idx=0, scheduler_stats=scheduler, iteration_stats=iteration, mm_cache_stats=None)
