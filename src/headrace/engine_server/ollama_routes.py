"""Ollama's routes, so that its clients and what is built on them work unchanged."""

from datetime import UTC, datetime
from importlib.metadata import version

import msgspec

from headrace.base.errors import HeadraceError
from headrace.engine_server.generating import Generating
from headrace.engine_server.routes import Access, Call, Handler, Route
from headrace.http.asgi import Send, send_json
from headrace.http.translated import translated_send
from headrace.protocol.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
    chat_of_generate,
    chat_of_ollama,
    completion_of_generate,
    parse_ollama_chat,
    parse_ollama_generate,
    parse_ollama_show,
    plain_name,
)
from headrace.protocol.ollama_answers import OllamaTranslator
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.translation import TranslatedAnswer

_encode = msgspec.json.Encoder().encode


class OllamaRoutes:
    """`/api/...`"""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    def routes(self) -> list[Route]:
        """The routes."""
        chat, generate = OllamaChatRequest, OllamaGenerateRequest
        made: list[tuple[str, str, Handler, str, type[msgspec.Struct] | None]] = [
            ("POST", "/api/chat", self._chat, "Ollama's chat", chat),
            ("POST", "/api/generate", self._generate, "Ollama's completion", generate),
            ("GET", "/api/tags", self._tags, "Ollama's list of models", None),
            ("GET", "/api/ps", self._running, "Ollama's list of loaded models", None),
            ("POST", "/api/show", self._show, "Ollama's facts of a model", OllamaShowRequest),
        ]
        routes = [
            Route(method, path, handler, error_body=ollama_error, summary=summary, request=request)
            for method, path, handler, summary, request in made
        ]
        about = Route(
            "GET", "/api/version", self._version, Access.PUBLIC, ollama_error, "The version"
        )
        return [*routes, about]

    async def _chat(self, call: Call) -> None:
        self._generating.check_accepting()
        request = parse_ollama_chat(await call.body())
        if not request.messages:
            await self._load(request, call.send)
            return
        chat = parse_chat_request(chat_of_ollama(request))
        translator = OllamaTranslator(request.model, self._generating.service.clock, is_chat=True)
        send = translated_send(call.send, TranslatedAnswer(translator))
        caller = self._generating.caller(call.scope)
        await self._generating.answer(chat, caller, call.receive, send)

    async def _generate(self, call: Call) -> None:
        self._generating.check_accepting()
        request = parse_ollama_generate(await call.body())
        if not request.prompt and not request.suffix:
            await self._load(request, call.send)
            return
        translator = OllamaTranslator(request.model, self._generating.service.clock, is_chat=False)
        send = translated_send(call.send, TranslatedAnswer(translator))
        caller = self._generating.caller(call.scope)
        if request.raw or request.suffix:
            completion = parse_completion_request(completion_of_generate(request))
            await self._generating.answer(completion, caller, call.receive, send)
        else:
            chat = parse_chat_request(chat_of_generate(request))
            await self._generating.answer(chat, caller, call.receive, send)

    async def _load(self, request: OllamaChatRequest | OllamaGenerateRequest, send: Send) -> None:
        """A request without a prompt asks that the model be loaded, which it is."""
        service = self._generating.service
        service.check_name(plain_name(request.model))
        service.engine.check_available()
        line = {"model": request.model, "created_at": self._now(), "done": True}
        text = (
            {"message": {"role": "assistant", "content": ""}}
            if isinstance(request, OllamaChatRequest)
            else {"response": ""}
        )
        await send_json(send, 200, _encode({**line, **text, "done_reason": "load"}))

    async def _tags(self, call: Call) -> None:
        await send_json(call.send, 200, _encode({"models": await self._entries()}))

    async def _running(self, call: Call) -> None:
        entries = await self._entries() if self._generating.service.is_ready else []
        for entry in entries:
            entry |= {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
        await send_json(call.send, 200, _encode({"models": entries}))

    async def _show(self, call: Call) -> None:
        service = self._generating.service
        service.check_name(parse_ollama_show(await call.body()))
        service.check_tokenizer()
        facts = await service.facts()
        template = service.tokenizer.chat_template
        ready = service.engine.ready
        context = {} if ready is None else {f"{facts.family}.context_length": ready.context_length}
        tools = ["tools"] if service.dialect.tool_format is not None else []
        insert = ["insert"] if service.fills_gaps else []
        thinking = ["thinking"] if service.dialect.reasoning is not None else []
        body = {
            "modelfile": "",
            "parameters": "",
            "template": template.source if template else "",
            "details": facts.ollama_details(),
            "model_info": {
                "general.architecture": facts.family,
                "general.parameter_count": facts.parameter_count,
                **context,
            },
            "capabilities": ["completion", *insert, *tools, *thinking],
            "modified_at": self._modified(),
        }
        await send_json(call.send, 200, _encode(body))

    async def _version(self, call: Call) -> None:
        await send_json(call.send, 200, _encode({"version": version("headrace")}))

    async def _entries(self) -> list[dict[str, object]]:
        """The model, and each LoRA adapter as a model that is made of it."""
        base = await self._entry()
        name = self._generating.service.config.served_name
        details = {**(await self._generating.service.facts()).ollama_details()}
        adapted = [
            {
                **base,
                "name": f"{name}:{adapter.name}",
                "model": f"{name}:{adapter.name}",
                "digest": adapter.version,
                "details": {**details, "parent_model": name},
            }
            for adapter in self._generating.service.engine.adapters.values()
        ]
        return [base, *adapted]

    async def _entry(self) -> dict[str, object]:
        service = self._generating.service
        facts = await service.facts()
        name = service.config.served_name
        return {
            "name": name,
            "model": name,
            "modified_at": self._modified(),
            "size": facts.size_bytes,
            "digest": facts.digest,
            "details": facts.ollama_details(),
        }

    def _modified(self) -> str:
        return _timestamp(self._generating.service.created_wall_s)

    def _now(self) -> str:
        return _timestamp(self._generating.service.clock.wall_s())


def ollama_error(error: HeadraceError) -> bytes:
    """An error as Ollama's clients expect it."""
    return _encode({"error": error.message})


def _timestamp(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")
