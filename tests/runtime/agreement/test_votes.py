from hydraulis.runtime.agreement.votes import Votes


def test_a_count_lasts_until_its_question_is_outdated() -> None:
    votes, answers = Votes(), {"stop": False, "writing": True}
    for question in answers:
        votes.ask(question, lambda question=question: answers[question])  # type: ignore[misc]
    assert votes.cast() == [False, True]
    assert votes.count("stop") is None
    votes.take([0, 3])
    assert (votes.count("stop"), votes.count("writing")) == (0, 3)
    votes.forget("writing")
    assert (votes.count("stop"), votes.count("writing")) == (0, None)


def test_a_question_asked_again_is_answered_anew() -> None:
    votes = Votes()
    votes.ask("stop", lambda: True)
    votes.take([1])
    votes.ask("stop", lambda: False)
    assert votes.cast() == [False]
    assert votes.count("stop") is None
