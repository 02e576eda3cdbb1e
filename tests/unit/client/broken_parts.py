"""The objects that the blueprints in `broken_blueprints` name."""

from pydantic import BaseModel, SecretStr

NUMBER = 3


def echo(data: object) -> object:
    return data


class Tools:
    echo = staticmethod(echo)


class Login(BaseModel):
    key: SecretStr


def sign_in(_: object) -> Login: ...


class Letter(BaseModel):
    title: str = ""
    pages: int = 0


class Other(BaseModel):
    name: str = ""


class Judge:
    def validate(self, data: object) -> None:
        return None


JUDGE = Judge()


def pay(data: object, customer: str) -> None: ...


def write(_data: object) -> Letter:
    return Letter()


def read(other: Other) -> str:
    return other.name


def send_mail(to: str) -> str:
    """Look like an effect."""
    return to
