"""The licence audit's truth: derived from metadata, backed by a quote, honest about what is not known."""

import pytest
from flujo_demo.license_facts import (
    FILE_CHARS,
    MAX_FILES,
    DistributionMetadata,
    LicenseFile,
    LicenseVerdict,
    derive_verdict,
    evidence_holds,
    installed_distributions,
    read_metadata,
)
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.errors import NonRetryableError

OSI = "License :: OSI Approved :: "
MIT_TEXT = (
    "Copyright me\n\nPermission is hereby granted, free of charge, to any person\nobtaining a copy of this software"
)
BSD_TEXT = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted"
DISCLAIMER = "\nTHIS SOFTWARE IS PROVIDED BY THE HOLDERS"
THIRD = "\nNeither the name may be used to endorse or promote products"


def about(*, files: tuple[str, ...] = (), classifiers: tuple[str, ...] = (), **fields) -> DistributionMetadata:
    named = tuple(LicenseFile(name=f"LICENSE.{number}", text=text) for number, text in enumerate(files))
    return DistributionMetadata(name="thing", version="1", classifiers=classifiers, license_files=named, **fields)


@pytest.mark.parametrize(
    ("expression", "category"),
    [
        ("MIT", "permissive"),
        ("mit", "permissive"),
        ("GPL-3.0-or-later", "copyleft"),
        ("LGPL-2.1-only", "copyleft"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "copyleft"),
        ("MIT OR GPL-3.0-only", "permissive"),
        ("MIT AND GPL-3.0-only", "copyleft"),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", "copyleft"),
        ("MIT OR (GPL-3.0-only AND MPL-2.0)", "permissive"),
        ("MIT OR Apache-2.0 AND MPL-2.0", "permissive"),
        ("LicenseRef-Proprietary", "proprietary"),
        ("BUSL-1.1", "proprietary"),
        ("MIT AND LicenseRef-Own", "unknown"),
        ("MIT OR LicenseRef-Own", "permissive"),
        ("LicenseRef-Own", "unknown"),
        ("(MIT", "unknown"),
        ("MIT OR", "unknown"),
        ("MIT MIT", "unknown"),
        ("(" * 5000, "unknown"),
    ],
)
def test_an_expression_is_read_as_spdx(expression, category):
    assert derive_verdict(about(license_expression=expression)).category == category


@pytest.mark.parametrize(
    ("classifier", "spdx", "category"),
    [
        (OSI + "MIT License", "MIT", "permissive"),
        (OSI + "MIT No Attribution License (MIT-0)", "MIT-0", "permissive"),
        (OSI + "Apache Software License", "Apache-2.0", "permissive"),
        (OSI + "BSD License", "LicenseRef-BSD", "permissive"),
        (OSI + "ISC License (ISCL)", "ISC", "permissive"),
        (OSI + "Python Software Foundation License", "PSF-2.0", "permissive"),
        (OSI + "The Unlicense (Unlicense)", "Unlicense", "permissive"),
        (OSI + "zlib/libpng License", "Zlib", "permissive"),
        (OSI + "Historical Permission Notice and Disclaimer (HPND)", "HPND", "permissive"),
        ("License :: CC0 1.0 Universal (CC0 1.0) Public Domain Dedication", "CC0-1.0", "permissive"),
        ("License :: Public Domain", "LicenseRef-Public-Domain", "permissive"),
        (OSI + "Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0", "copyleft"),
        (OSI + "GNU General Public License (GPL)", "GPL", "copyleft"),
        (OSI + "GNU General Public License v2 (GPLv2)", "GPL-2.0-only", "copyleft"),
        (OSI + "GNU General Public License v3 or later (GPLv3+)", "GPL-3.0-or-later", "copyleft"),
        (OSI + "GNU Lesser General Public License v3 (LGPLv3)", "LGPL-3.0-only", "copyleft"),
        (OSI + "GNU Library or Lesser General Public License (LGPL)", "LGPL", "copyleft"),
        (OSI + "GNU Affero General Public License v3 or later (AGPLv3+)", "AGPL-3.0-or-later", "copyleft"),
        ("License :: Other/Proprietary License", "LicenseRef-Proprietary", "proprietary"),
        ("License :: Free for non-commercial use", "LicenseRef-Proprietary", "proprietary"),
        ("License :: OSI Approved", "NOASSERTION", "unknown"),
    ],
)
def test_a_classifier_is_understood(classifier, spdx, category):
    verdict = derive_verdict(about(classifiers=(classifier,)))
    assert (verdict.spdx, verdict.category) == (spdx, category)


@pytest.mark.parametrize(
    ("field", "spdx", "category"),
    [
        ("MIT", "MIT", "permissive"),
        ("MIT style", "MIT", "permissive"),
        ("The MIT License (MIT)", "MIT", "permissive"),
        ("New BSD", "BSD-3-Clause", "permissive"),
        ("BSD 2-Clause License", "BSD-2-Clause", "permissive"),
        ("3-Clause BSD License", "BSD-3-Clause", "permissive"),
        ("BSD", "LicenseRef-BSD", "permissive"),
        ("Apache 2.0", "Apache-2.0", "permissive"),
        ("Apache License, Version 2.0", "Apache-2.0", "permissive"),
        ("MIT/Apache-2.0", "Apache-2.0 OR MIT", "permissive"),
        ("GPLv3+", "GPL-3.0-or-later", "copyleft"),
        ("GNU GPL v2", "GPL-2.0-only", "copyleft"),
        ("LGPL-2.1 or later", "LGPL-2.1-or-later", "copyleft"),
        ("AGPL", "AGPL", "copyleft"),
        ("Proprietary", "LicenseRef-Proprietary", "proprietary"),
        ("Dual License", "NOASSERTION", "unknown"),
        ("see the file", "NOASSERTION", "unknown"),
        ("", "NOASSERTION", "unknown"),
    ],
)
def test_the_license_field_is_understood(field, spdx, category):
    verdict = derive_verdict(about(license_text=field))
    assert (verdict.spdx, verdict.category) == (spdx, category)


@pytest.mark.parametrize(
    ("text", "spdx"),
    [
        (MIT_TEXT, "MIT"),
        (BSD_TEXT + DISCLAIMER, "BSD-2-Clause"),
        (BSD_TEXT + THIRD + DISCLAIMER, "BSD-3-Clause"),
        (BSD_TEXT, "LicenseRef-BSD"),
        ("      Apache License\n   Version 2.0, January 2004", "Apache-2.0"),
        (
            "GNU LESSER GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007\n ... the GNU General Public License",
            "LGPL-3.0",
        ),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3", "AGPL-3.0"),
        ("GNU GENERAL PUBLIC LICENSE\nVersion 2", "GPL-2.0"),
        ("the terms of the Mozilla Public License, v. 2.0. If a copy", "MPL-2.0"),
        ("This is free and unencumbered software released into the public domain.", "Unlicense"),
        ("Permission to use, copy, modify, and/or distribute this software for any purpose with", "ISC"),
        ("This software is proprietary and confidential.", "LicenseRef-Proprietary"),
        ("All rights reserved.", "NOASSERTION"),
    ],
)
@pytest.mark.parametrize("place", ["file", "field"])
def test_a_licence_is_known_by_its_text(text, spdx, place):
    padded = f"{text}\n{'.' * 200}"
    metadata = about(files=(padded,)) if place == "file" else about(license_text=padded)
    assert derive_verdict(metadata).spdx == spdx


def test_the_expression_comes_first_and_the_files_last():
    everything = {"classifiers": (OSI + "ISC License (ISCL)",), "license_text": "Zlib", "files": (MIT_TEXT,)}
    assert derive_verdict(about(license_expression="Apache-2.0", **everything)).spdx == "Apache-2.0"
    assert derive_verdict(about(**everything)).spdx == "ISC"
    assert derive_verdict(about(**everything | {"classifiers": ()})).spdx == "Zlib"


@pytest.mark.parametrize("place", ["license_text", "files"])
def test_which_bsd_it_is_is_looked_up(place):
    told = "BSD 3-Clause" if place == "license_text" else (BSD_TEXT + THIRD,)
    assert derive_verdict(about(classifiers=(OSI + "BSD License",), **{place: told})).spdx == "BSD-3-Clause"


def test_two_classifiers_bind_both_unless_a_choice_is_offered():
    both = (OSI + "MIT License", OSI + "GNU General Public License v3 (GPLv3)")
    assert derive_verdict(about(classifiers=both)).category == "copyleft"
    assert derive_verdict(about(classifiers=both, license_text="Dual License")).category == "permissive"


def test_files_that_say_otherwise_take_the_confidence():
    sure = derive_verdict(about(license_expression="MIT", files=(MIT_TEXT,)))
    doubtful = derive_verdict(about(license_expression="MIT", files=("GNU GENERAL PUBLIC LICENSE\nVersion 3",)))
    assert sure.confidence > 0.9
    assert doubtful.confidence <= 0.5


@pytest.mark.parametrize(
    ("said", "is_sure"),
    [
        ({"classifiers": (OSI + "MIT License",)}, False),
        ({"classifiers": (OSI + "MIT License",), "files": (MIT_TEXT,)}, True),
        ({"classifiers": (OSI + "MIT License",), "license_text": "MIT"}, True),
        ({"license_text": "BSD"}, False),
        ({"license_text": "BSD", "files": (BSD_TEXT + THIRD,)}, True),
        ({"license_text": "GPL"}, False),
        ({"license_text": "GPLv3"}, True),
        ({"license_text": "MIT or GPL"}, False),
        ({"files": (MIT_TEXT,)}, True),
    ],
)
def test_classifiers_alone_and_families_of_licences_leave_doubts(said, is_sure):
    """A classifier is coarse, and `BSD` or `GPL` leave open which one."""
    assert (derive_verdict(about(**said)).confidence >= 0.7) is is_sure


def test_bundled_licences_do_not_count():
    bundled = LicenseFile(name="vendor/x/LICENSE", text="GNU GENERAL PUBLIC LICENSE\nVersion 3")
    outer = LicenseFile(name="LICENSE", text=MIT_TEXT)
    metadata = DistributionMetadata(name="thing", version="1", license_files=(outer, bundled))
    assert derive_verdict(metadata).spdx == "MIT"


@pytest.mark.parametrize(
    ("evidence", "category", "stands"),
    [
        ("any person obtaining a copy", "permissive", True),
        ("any person selling a copy", "permissive", False),
        ("", "permissive", False),
        ("", "unknown", True),
        ("nothing of this", "unknown", False),
    ],
)
def test_a_quote_must_stand_in_the_metadata(evidence, category, stands):
    verdict = LicenseVerdict(spdx="MIT", category=category, confidence=0.9, evidence=evidence)
    assert evidence_holds(about(files=(MIT_TEXT,)), verdict) is stands


TEXTS = st.sampled_from(["", "MIT", "BSD", "GPLv3+", "Dual License", MIT_TEXT, BSD_TEXT, "??"]) | st.text(max_size=30)


@given(TEXTS, TEXTS, st.lists(TEXTS.map(lambda text: f"License :: {text}"), max_size=3), st.lists(TEXTS, max_size=3))
def test_every_verdict_is_backed_by_its_evidence(expression, field, classifiers, files):
    metadata = about(
        license_expression=expression, license_text=field, classifiers=tuple(classifiers), files=tuple(files)
    )
    verdict = derive_verdict(metadata)
    assert evidence_holds(metadata, verdict)
    assert (verdict.confidence == 0.0) is (verdict.category == "unknown")


@pytest.mark.large
def test_every_distribution_installed_here_has_a_verdict_that_stands():
    for name in installed_distributions():
        metadata = read_metadata(name)
        verdict = derive_verdict(metadata)
        assert evidence_holds(metadata, verdict), name
        assert len(metadata.license_files) <= MAX_FILES
        assert all(len(file.text) <= FILE_CHARS for file in metadata.license_files)


@pytest.mark.parametrize(
    ("name", "spdx", "category"),
    [
        ("pydantic", "MIT", "permissive"),
        ("celery", "BSD-3-Clause", "permissive"),
        ("psycopg", "LGPL-3.0-only", "copyleft"),
        ("hypothesis", "MPL-2.0", "copyleft"),
        ("vine", "BSD-3-Clause", "permissive"),
        ("Typing.Extensions", "PSF-2.0", "permissive"),
    ],
)
def test_known_distributions_are_judged_rightly(name, spdx, category):
    verdict = derive_verdict(read_metadata(name))
    assert (verdict.spdx, verdict.category) == (spdx, category)


def test_names_are_normalised_unique_and_sorted():
    names = installed_distributions()
    assert names == sorted(set(names))
    assert "typing-extensions" in names


@pytest.mark.parametrize(
    ("name", "hint"), [("pydantik", "did you mean pydantic?"), ("", None), ("no such thing", None)]
)
def test_a_name_that_is_not_installed_is_refused(name, hint):
    with pytest.raises(NonRetryableError, match="is installed") as caught:
        read_metadata(name)
    assert caught.value.suggestion == hint
