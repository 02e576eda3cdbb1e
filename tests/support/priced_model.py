"""A model that answers here and now, under the name of one that a provider bills."""

from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage


class PricedModel(FunctionModel):
    """Answers `SAYS`, for four bytes a token in and `WRITES` tokens out, or as many as it may write if that is fewer."""

    SAYS, WRITES = "so it is", 90

    def __init__(self, model: str = "openai:gpt-5.2") -> None:
        super().__init__(self.answer, model_name=model.partition(":")[2])
        self.provider_name, self.asked = model.partition(":")[0], 0

    @property
    def system(self) -> str:
        return self.provider_name

    async def answer(self, messages: Any, info: Any) -> ModelResponse:
        self.asked += 1
        read = sum(len(str(part.content).encode()) for each in messages for part in each.parts)
        most = (info.model_settings or {}).get("max_tokens") or self.WRITES
        usage = RequestUsage(input_tokens=read // 4, output_tokens=min(self.WRITES, most))
        return ModelResponse([TextPart(self.SAYS)], usage=usage)

    async def request(self, *args: Any, **rest: Any) -> ModelResponse:
        response = await super().request(*args, **rest)
        response.provider_name = self.provider_name
        return response
